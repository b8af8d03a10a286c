"""Extra passes through a network in training that leave no trace in it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def running_averages_kept(model: nn.Module) -> Iterator[None]:
    """Batch norm goes on normalising as the network's mode says, but its running averages stand still.

    For passes at perturbed weights or inputs, which evaluation never sees.
    """
    tracking = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module's own mode again."""
    training = [m for m in model.modules() if m.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
