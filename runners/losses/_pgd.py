"""Projected gradient ascent on cross-entropy, in the input."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from runners.passes import running_averages_kept


def ascend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float | Tensor,
    step_size: float | Tensor,
    steps: int,
    logits: Tensor | None = None,
) -> Tensor:
    """Inputs near ``x`` with a higher cross-entropy, by signed gradient steps.

    The search of Madry et al. 2018 (arXiv 1706.06083) without a random start: it starts at x itself, and ends
    inside the ball |x' - x|_inf <= eps. Values are not clipped to the range of pixels. The network keeps its
    mode, but batch norm's running averages do not see the passes.

    Args:
        model: from inputs to logits.
        x: inputs [n, ...].
        y: labels, int64 [n].
        eps: radius of the ball in units of x; may differ by entry, broadcast over the batch.
        step_size: length of a step in each entry, as ``eps``.
        steps: number of steps, at least 1.
        logits: ``model(x)``, if there is a pass already, made with gradients and with an x that requires one.

    Returns:
        The inputs found, [n, ...], without gradient.
    """
    start, point = x.detach(), x
    with torch.enable_grad(), running_averages_kept(model):
        for _ in range(steps):
            if logits is None:
                point = point.detach().requires_grad_()
                logits = model(point)
            # The sum, because the mean of n tiny gradients may underflow.
            value = cross_entropy(logits, y, reduction="sum")
            (slope,) = torch.autograd.grad(value, point, retain_graph=point is x)
            moved = point.detach() + step_size * slope.sign() - start
            point = start + torch.minimum(torch.maximum(moved, -_like(eps, x)), _like(eps, x))
            logits = None
    return point


def _like(value: float | Tensor, x: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=x.dtype, device=x.device)
