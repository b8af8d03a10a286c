"""The principal subspace of a data set's inputs, found once per data set."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# Axes are found for up to this many samples or features, the fewer of both; beyond, they cost more than they save.
MOST_AXES = 4096
ITERATIONS = 3
# Enrichment takes up no direction whose squared length is less than this share of the longest's.
NEGLIGIBLE = 1e-6
# The share of the inputs' squared length that the leading axes may leave out ...
FAINT = 0.004
# ... where that spares at least so many axes ...
LEAST_SPARED = 256
# ... of which so many random combinations are kept.
SKETCH = 32

# Inputs on their leading axes, on all their axes, or as they are.
Coordinates = Literal["leading", "axes", "inputs"]


class PrincipalInputs(NamedTuple):
    """Coordinates of the inputs on some of their directions.

    Attributes:
        inputs: x A, [n, g], on the axes below; the inputs themselves where there are none.
        axes: A, orthonormal columns [f, g]: the right singular vectors of x, leading first, whose singular values a
            Gram matrix in this precision tells from zero. None where they were not found, or not wanted.
        unseen: the largest singular value that all the axes may leave out; 0 without axes.
        faint: [n, s], random combinations of the axes that the leading ones leave out, scaled so that the squared
            length of M faint is on average that of M times what is left out, for any M. None where none is.
        basis: orthonormal columns Q, [g, r].
        coordinates: x A Q, [n, r].
    """

    inputs: Tensor
    axes: Tensor | None
    unseen: float
    faint: Tensor | None
    basis: Tensor
    coordinates: Tensor

    def on_axes(self, rows: Tensor) -> Tensor:
        """Rows [k, f] in the inputs' own coordinates -> their coordinates on the axes, [k, g]."""
        return rows if self.axes is None else rows @ self.axes

    def with_basis(self, basis: Tensor) -> "PrincipalInputs":
        """The same inputs with any other orthonormal columns [g, r]."""
        return self._replace(basis=basis, coordinates=self.inputs @ basis)


_found: WeakIdKeyDictionary = WeakIdKeyDictionary()


def principal_inputs(x: Tensor, rank: int, *, coordinates: Coordinates = "axes") -> PrincipalInputs:
    """Flattened inputs on their ``rank`` leading right singular vectors.

    Kept as long as ``x`` lives and is not changed in place. Without axes the vectors are approximate; their
    orthonormality is not, which is all that curvature relies on.

    Args:
        x: inputs [n, ...], f numbers each.
        rank: most vectors; fewer are returned where the inputs span less.
        coordinates: "leading" gives the inputs on the leading axes, where these are far fewer than "axes", which gives
            them on all, where these can be found; "inputs" as they are.
    """
    signature = (x._version, x.data_ptr(), rank)
    kept = _found.get(x)
    if kept is None or kept[0] != signature:
        kept = _found[x] = (signature, {})
    found: dict[Coordinates, PrincipalInputs] = kept[1]
    if coordinates not in found:
        if coordinates == "leading":
            found[coordinates] = _on_leading_axes(principal_inputs(x, rank))
        else:
            found[coordinates] = _factor(x.detach().flatten(1), rank, coordinates == "axes")
    return found[coordinates]


def _factor(x: Tensor, rank: int, on_axes: bool) -> PrincipalInputs:
    whole = PrincipalInputs(x, None, 0.0, None, x, x)
    if not on_axes or min(x.shape) > MOST_AXES:
        return whole.with_basis(_leading(x, rank))
    axes, unseen = _axes(x)
    leading = torch.eye(axes.shape[1], dtype=x.dtype, device=x.device)[:, :rank].contiguous()
    return whole._replace(inputs=x @ axes, axes=axes, unseen=unseen).with_basis(leading)


def _on_leading_axes(whole: PrincipalInputs) -> PrincipalInputs:
    if whole.axes is None:
        return whole
    squares = whole.inputs.square().sum(0, dtype=torch.float64)
    held = squares.cumsum(0) >= (1 - FAINT) * squares.sum()
    count = max(whole.basis.shape[1], int((~held).sum()) + 1)
    rest = whole.inputs[:, count:]
    if rest.shape[1] < LEAST_SPARED:
        return whole
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(rest.shape[1], SKETCH, generator=generator, dtype=torch.float64).to(rest) / SKETCH**0.5
    return whole._replace(
        inputs=whole.inputs[:, :count].contiguous(),
        axes=whole.axes[:, :count].contiguous(),
        faint=rest @ mixing,
        basis=whole.basis[:count],
    )


def _axes(x: Tensor) -> tuple[Tensor, float]:
    """Right singular vectors as columns, leading first, and the largest singular value that may be left out.

    They are eigenvectors of the smaller Gram matrix, whose rounding hides squared singular values below a few eps times
    the largest.
    """
    n, f = x.shape
    # In float64, which no device multiplies in less than it says.
    exact = x.double()
    gram = exact @ exact.T if n < f else exact.T @ exact
    values, vectors = torch.linalg.eigh(gram.to(x.dtype))
    cut = 8 * torch.finfo(x.dtype).eps * float(values[-1])
    kept = vectors[:, values > cut].flip(1) if float(values[-1]) > 0 else vectors[:, -1:]
    axes = torch.linalg.qr(x.T @ kept).Q if n < f else kept
    # The sign of an eigenvector is the solver's whim; a resumed run needs the one that it had.
    signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return (axes * signs).contiguous(), (2 * cut) ** 0.5 if kept.shape[1] < f else 0.0


def _leading(x: Tensor, rank: int) -> Tensor:
    """About the leading right singular vectors, [f, r], by subspace iteration."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(x.shape[1], rank, generator=generator, dtype=torch.float64).to(x)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(x.T @ torch.linalg.qr(x @ basis).Q).Q
    return basis


def enriched(basis: Tensor, first_layer: Tensor, count: int) -> Tensor:
    """Orthonormal columns [g, r + count]: those of ``basis``, and the leading directions of rows beside them.

    Args:
        basis: orthonormal columns [g, r].
        first_layer: rows [width, g].
        count: directions to add; fewer where the rows span less.
    """
    beside = first_layer - first_layer @ basis @ basis.T
    # The rows' right singular vectors from the smaller of the two Gram matrices.
    values, left = torch.linalg.eigh((beside @ beside.T).double())
    kept = left[:, values > NEGLIGIBLE * values[-1]][:, -count:].to(basis)
    return torch.linalg.qr(torch.cat([basis, beside.T @ kept], 1)).Q
