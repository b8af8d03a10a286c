"""The Gauss-Newton matrix of a mean loss, by its products."""

from typing import Protocol

import torch
from torch import Tensor, nn

from runners.curvature.forward import Forward, run_forward
from runners.curvature.krylov import search, start_vectors
from runners.curvature.linearized import LinearizedNetwork
from runners.curvature.output import Output, OutputRoot
from runners.curvature.perceptron import LinearizedPerceptron


class Linearization(Protocol):
    """J v and J^T u at one point; vectors are rows [k, d], logits' tangents [n, k, K]."""

    size: int

    def push(self, vectors: Tensor, /) -> Tensor: ...
    def pull(self, cotangents: Tensor, /) -> Tensor: ...
    def grams(self, cotangents: Tensor, /) -> Tensor: ...


class GaussNewton:
    """G = mean_i J_i^T H_z(p_i) J_i = B^T B at the network's present parameters, B = H_z^(1/2) J / sqrt(n).

    J is the Jacobian of the logits in the trained parameters, flattened in the order of ``model.parameters()``. The
    network is linearised once: for a multilayer perceptron a product costs about one training step's two passes.

    Not the Hessian, which adds the curvature of the network; see `hessian_top`.

    Args:
        model: the network, in the mode to evaluate in (batch norm needs evaluation mode).
        x: inputs [n, ...].
        loss: the loss on logits: "ce" has H_z = diag(p) - p p^T, "mse" (2/K) I.
        forward: a pass already made by `run_forward` over the same inputs at the same parameters.
        chunk: samples per pass, which bounds memory; None takes all at once.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        loss: Output = "ce",
        *,
        forward: Forward | None = None,
        chunk: int | None = None,
    ) -> None:
        if chunk is not None and chunk >= len(x):
            chunk = None
        if forward is None:
            forward = run_forward(model, x, chunk=chunk)
        self.perceptron = None if chunk is not None else LinearizedPerceptron.at(model, x, forward)
        self.linearization: Linearization = self.perceptron or LinearizedNetwork(model, x, chunk)
        self.root = OutputRoot(forward.logits, loss)
        self.like = forward.logits.detach()

    @property
    def size(self) -> int:
        """Number of trained parameters d."""
        return self.linearization.size

    def half(self, vectors: Tensor) -> Tensor:
        """B V: rows [k, d] -> [n, k, K]."""
        return half(self.linearization, self.root, vectors)

    def half_transposed(self, duals: Tensor) -> Tensor:
        """B^T U: [n, k, K] -> rows [k, d]."""
        return half_transposed(self.linearization, self.root, duals)

    @torch.no_grad()
    def matvec(self, vector: Tensor) -> Tensor:
        """G v for a vector [d]."""
        return self._rows(vector[None])[0]

    @torch.no_grad()
    def matmat(self, vectors: Tensor) -> Tensor:
        """G V for columns [d, k]."""
        return self._rows(vectors.T.contiguous()).T

    def _rows(self, rows: Tensor) -> Tensor:
        return self.half_transposed(self.half(rows))

    @torch.no_grad()
    def quadratic(self, vectors: Tensor) -> Tensor:
        """v^T G v for each column of [d, k], as |B v|^2: never negative; [k]."""
        return self.half(vectors.T.contiguous()).square().sum((0, 2))

    @torch.no_grad()
    def trace(self) -> float:
        """tr G, exact: the sum over samples of |J_i^T F_i|^2, where F_i F_i^T = H_z(p_i) / n."""
        n, classes = self.like.shape
        # Row k of these cotangents is F e_k.
        basis = torch.eye(classes, dtype=self.like.dtype, device=self.like.device).expand(n, classes, classes)
        grams = self.linearization.grams(self.root.apply(basis))
        return float(grams.diagonal(dim1=1, dim2=2).sum(dtype=torch.float64))

    @torch.no_grad()
    def top(
        self, k: int = 1, tol: float = 1e-3, *, start: Tensor | None = None, seed: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The k largest eigenvalues.

        Args:
            k: number of pairs; more than d gives d.
            tol: residual, relative to the largest eigenvalue, at which the search stops.
            start: columns [d, s] to search from; random if left out.
            seed: of the random start.

        Returns:
            Values [k] descending, orthonormal vectors [d, k], residuals |G v - value v| [k]. Within its residual of
            each value there is an eigenvalue; a value is a Rayleigh quotient, so no larger than the one it stands for.
        """
        rows = start_vectors(k, self.size, self.like, seed) if start is None else start.T
        found = search(self._rows, rows.contiguous(), k, tol, seed=seed)
        return found.values, found.vectors.T, found.residuals


def half(linearization: Linearization, root: OutputRoot, vectors: Tensor) -> Tensor:
    """B V: rows [k, d] -> [n, k, K]."""
    return root.transposed(linearization.push(vectors))


def half_transposed(linearization: Linearization, root: OutputRoot, duals: Tensor) -> Tensor:
    """B^T U: [n, k, K] -> rows [k, d]."""
    return linearization.pull(root.apply(duals))
