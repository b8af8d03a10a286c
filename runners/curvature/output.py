"""A square root of the output Hessian."""

from typing import Literal

from torch import Tensor

Output = Literal["ce", "mse"]


class OutputRoot:
    """F with F F^T = H_z / n: for cross-entropy H_z = diag(p) - p p^T, for squared error (2/K) I.

    For cross-entropy F = (diag(s) - p s^T) / sqrt(n) with s = sqrt(p): as s^T s = 1, F F^T is H_z / n. Neither
    direction subtracts nearly equal numbers when p is nearly one-hot, and for a one-hot p both give exactly 0.

    Args:
        logits: [n, K].
        loss: "ce" or "mse".
        samples: n of the mean; more than the rows of ``logits`` where these are a chunk.
    """

    def __init__(self, logits: Tensor, loss: Output, samples: int | None = None) -> None:
        n, classes = logits.shape
        n = samples or n
        if loss == "mse":
            self._p = None
            self._root: Tensor | float = (2 / (classes * n)) ** 0.5
        else:
            self._p = logits.detach().softmax(-1)[:, None]
            self._root = (self._p / n).sqrt()

    def transposed(self, tangents: Tensor) -> Tensor:
        """F^T t for each of [n, k, K]."""
        if self._p is None:
            return tangents * self._root
        mean = (self._p * tangents).sum(-1, keepdim=True)
        return (tangents - mean).mul_(self._root)

    def apply(self, vectors: Tensor) -> Tensor:
        """F u for each of [n, k, K]."""
        weighted = vectors * self._root
        if self._p is None:
            return weighted
        return weighted.addcmul_(self._p, weighted.sum(-1, keepdim=True), value=-1)
