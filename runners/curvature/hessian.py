"""The Hessian of a mean loss: products and top eigenpairs."""

import torch
from torch import Tensor, nn

from runners.curvature.flat import flatten
from runners.curvature.krylov import search, start_vectors
from runners.losses import Loss


class Hessian:
    """H v of the mean loss over samples, at the network's present parameters.

    The graph of the gradient is made once and kept, so that a product is one backward pass through it; in chunks it is
    made anew for each product, so that memory stays that of one chunk.

    Args:
        model: the network, in the mode to evaluate in.
        x: inputs [n, ...].
        y: labels [n].
        loss: the training loss.
        chunk: samples per pass; None takes all at once.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, chunk: int | None = None) -> None:
        self._model, self._x, self._y, self._loss = model, x, y, loss
        self._chunk = chunk if chunk is not None and chunk < len(y) else None
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self.parameters)
        self._gradient = self._slope(x, y) if self._chunk is None else None

    def _slope(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            value = self._loss(self._model, x, y) * (len(y) / len(self._y))
            return flat_gradient(value, self.parameters, create_graph=True)

    def gradient(self) -> Tensor:
        """The gradient of the mean loss, [d]."""
        if self._gradient is not None:
            return self._gradient.detach()
        parts = zip(self._x.split(self._chunk), self._y.split(self._chunk), strict=True)
        return torch.stack([self._slope(x, y).detach() for x, y in parts]).sum(0)

    def rows(self, vectors: Tensor) -> Tensor:
        """H v for each row of [k, d]."""
        if self._gradient is not None:
            return torch.stack([self._differentiate(self._gradient, v) for v in vectors])
        total = torch.zeros_like(vectors)
        for x, y in zip(self._x.split(self._chunk), self._y.split(self._chunk), strict=True):
            gradient = self._slope(x, y)
            for row, vector in zip(total, vectors, strict=True):
                row += self._differentiate(gradient, vector)
        return total

    def _differentiate(self, gradient: Tensor, vector: Tensor) -> Tensor:
        with torch.enable_grad():
            return flat_gradient(gradient @ vector.detach(), self.parameters, retain_graph=True)


def flat_gradient(
    value: Tensor,
    parameters: list[nn.Parameter],
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> Tensor:
    """The gradient of a scalar in all parameters, [d]; zero where it does not depend on them."""
    if not value.requires_grad:
        return flatten(torch.zeros_like(p) for p in parameters)
    return flatten(
        torch.autograd.grad(
            value,
            parameters,
            create_graph=create_graph,
            retain_graph=retain_graph,
            allow_unused=True,
            materialize_grads=True,
        )
    )


def hessian_product(
    model: nn.Module, x: Tensor, y: Tensor, loss: Loss, vector: Tensor, chunk: int | None = None
) -> Tensor:
    """H v for a flat vector [d], H the Hessian of the mean loss over the samples; arguments as in `Hessian`."""
    return Hessian(model, x, y, loss, chunk).rows(vector[None])[0]


def hessian_top(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Loss,
    k: int = 1,
    tol: float = 1e-3,
    *,
    seed: int = 0,
    start: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest (most positive) eigenvalues of the Hessian.

    Args:
        model: the network, in the mode to evaluate in.
        x: inputs [n, ...].
        y: labels [n].
        loss: the training loss.
        k: number of pairs; more than d gives d.
        tol: residual, relative to the eigenvalue of largest magnitude, at which the search stops.
        seed: of the random start.
        start: columns [d, s] to start from, such as the last vectors found. A search from nearly exact eigenvectors
            stays with them when another eigenvalue overtakes: add a random column.
        chunk: samples per pass; None takes all at once.

    Returns:
        Values [k] descending, orthonormal vectors [d, k], residuals |H v - value v| [k].
    """
    matrix = Hessian(model, x, y, loss, chunk)
    like = matrix.parameters[0].detach()
    rows = start_vectors(k, matrix.size, like, seed) if start is None else start.T.contiguous()
    with torch.no_grad():
        found = search(matrix.rows, rows, k, tol, seed=seed)
    return found.values, found.vectors.T, found.residuals
