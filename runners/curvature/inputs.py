"""The principal subspace of a data set's inputs, found once per data set."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# Up to this many rows or columns all singular vectors are found; beyond, the leading ones by subspace iteration.
EXACT_UP_TO = 512
ITERATIONS = 3
COMPLETE = 1e-6


class PrincipalInputs(NamedTuple):
    """Coordinates of the inputs on their leading right singular vectors.

    Attributes:
        basis: orthonormal columns Q, [f, r].
        coordinates: x Q, [n, r].
        complete: whether Q spans all inputs, up to rounding.
    """

    basis: Tensor
    coordinates: Tensor
    complete: bool


_found: WeakIdKeyDictionary = WeakIdKeyDictionary()


def principal_inputs(x: Tensor, rank: int) -> PrincipalInputs:
    """The ``rank`` leading right singular vectors of flattened inputs, and the inputs' coordinates on them.

    Kept as long as ``x`` lives and is not changed in place. The vectors beyond the first few are approximate; their
    orthonormality is not, which is all that curvature relies on.

    Args:
        x: inputs [n, ...], f numbers each.
        rank: most vectors; fewer are returned where the inputs span less.
    """
    signature = (x._version, x.data_ptr(), rank)
    kept = _found.get(x)
    if kept is None or kept[0] != signature:
        kept = (signature, _factor(x.detach().flatten(1), rank))
        _found[x] = kept
    return kept[1]


def _factor(x: Tensor, rank: int) -> PrincipalInputs:
    n, f = x.shape
    if min(n, f) <= EXACT_UP_TO:
        _, values, rows = torch.linalg.svd(x.double(), full_matrices=False)
        spanned = int((values > COMPLETE * values[0]).sum())
        basis = rows[: max(1, min(rank, spanned))].T.to(x.dtype).contiguous()
    else:
        generator = torch.Generator().manual_seed(0)
        basis = torch.randn(f, rank, generator=generator, dtype=torch.float64).to(x)
        for _ in range(ITERATIONS):
            basis = torch.linalg.qr(x.T @ torch.linalg.qr(x @ basis).Q).Q
    coordinates = x @ basis
    rest = x.double().square().sum() - coordinates.double().square().sum()
    complete = float(rest) <= COMPLETE * float(coordinates.double().square().sum())
    return PrincipalInputs(basis, coordinates, complete)
