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
        rest: what Q cannot hold, x - x Q Q^T, [n, f]; None where Q spans all inputs, up to rounding. In bfloat16 where
            that multiplies faster than float32, as only the small part of a product that lies outside Q is made of it.
    """

    basis: Tensor
    coordinates: Tensor
    rest: Tensor | None


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
    return inputs_on(x, basis)


def inputs_on(x: Tensor, basis: Tensor) -> PrincipalInputs:
    """The coordinates of inputs [n, ...] on any orthonormal columns [f, r], and what these leave out."""
    x = x.detach().flatten(1)
    coordinates = x @ basis
    rest = torch.addmm(x, coordinates, basis.T, alpha=-1)
    inside, outside = (float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in (coordinates, rest))
    if outside <= COMPLETE * inside:
        return PrincipalInputs(basis, coordinates, None)
    if x.dtype == torch.float32 and fast_bfloat16(x.device):
        rest = rest.bfloat16()
    return PrincipalInputs(basis, coordinates, rest)


def enriched(basis: Tensor, first_layer: Tensor, count: int) -> Tensor:
    """Orthonormal columns [f, r + count]: those of ``basis``, and the leading directions of rows beside them.

    Args:
        basis: orthonormal columns [f, r].
        first_layer: rows [width, f].
        count: directions to add; fewer where the rows span less.
    """
    beside = first_layer - first_layer @ basis @ basis.T
    # The rows' right singular vectors from the smaller of the two Gram matrices.
    values, left = torch.linalg.eigh((beside @ beside.T).double())
    kept = left[:, values > COMPLETE * values[-1]][:, -count:].to(basis)
    return torch.linalg.qr(torch.cat([basis, beside.T @ kept], 1)).Q


def fast_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 matrices in hardware; False where this version of torch cannot tell."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return device.type == "cpu" and bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
