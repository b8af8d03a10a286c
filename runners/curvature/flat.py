"""Parameters as one flat vector."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name, detached, in the network's order."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def flatten(parts: Iterable[Tensor]) -> Tensor:
    """One vector [d] of all entries."""
    return torch.cat([part.flatten() for part in parts])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `flatten` for parameters shaped like these."""
    pieces = vector.split([p.numel() for p in like.values()])
    return {name: piece.view_as(p) for (name, p), piece in zip(like.items(), pieces, strict=True)}
