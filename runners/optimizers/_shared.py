"""What several optimizers need: the parameters to train, and types of their settings."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo
from torch import nn

from analysis.plugins import SettingError

Decay = Annotated[float, Field(ge=0, lt=1)]
"""Weight of the past in a running average, or momentum."""


def _needs_momentum(nesterov: bool, info: ValidationInfo) -> bool:
    if nesterov and info.data.get("momentum") == 0:
        raise ValueError("Nesterov's step needs a momentum above 0, and momentum is 0")
    return nesterov


Nesterov = Annotated[bool, AfterValidator(_needs_momentum)]
"""Nesterov's form of momentum; the field has to stand below `momentum`."""


def trained(params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """The parameters that require a gradient, in their order; frozen ones are left alone.

    Raises:
        SettingError: all are frozen.
    """
    chosen = [p for p in params if p.requires_grad]
    if not chosen:
        raise SettingError("model: no parameter requires a gradient; expected at least one to train")
    return chosen


def one_kernel(params: Iterable[nn.Parameter]) -> bool | None:
    """The ``fused`` of torch's optimizers: one kernel for the whole step on CUDA devices, and elsewhere the default."""
    return True if all(p.is_cuda for p in params) else None
