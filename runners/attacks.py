"""Searches for the smallest margin near an input. What they find is an UPPER estimate of the robust margin.

The robust margin m_eps(x, y) is the infimum of m over the ball |delta| <= eps. A search reaches some point of the ball,
whose margin is at least the infimum, so a moment mean exp(-margin) made of what it finds is a lower estimate of Q_eps.
A stronger search can only lower it; none is a certificate.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from runners.passes import running_averages_kept

Norm = Literal["linf", "l2"]


def margin_of(logits: Tensor, y: Tensor) -> Tensor:
    """m = z_y - max_{j != y} z_j from logits [n, K] and labels [n]: [n], differentiable."""
    own = logits.gather(1, y[:, None])[:, 0]
    return own - logits.scatter(1, y[:, None], -torch.inf).amax(dim=1)


def robust_margin_upper(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    norm: Norm,
    eps: float,
    step_size: float,
    steps: int,
    restarts: int = 0,
    pixel_std: Tensor | float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The smallest margin that projected gradient descent on the margin meets in the ball: an UPPER estimate of m_eps.

    It starts at the clean point and, ``restarts`` times more, at a random point of the ball (Madry et al. 2018, arXiv
    1706.06083). A step goes ``step_size`` along the sign of the gradient ("linf"), or along the gradient divided by its
    Euclidean norm ("l2"); then the point is projected onto the ball. Inputs are not clipped to the range of
    pixels: the ball is that of the paper's definition. The least margin over all points met is kept, the clean
    one included, so the estimate is at most the clean margin and never rises with more steps or restarts
    of the same generator.

    Args:
        model: the network, in the mode to evaluate in; its running averages are left alone.
        x: standardised inputs [n, ...].
        y: labels, int64 [n].
        norm: "linf" or "l2", in pixels.
        eps: radius, at least 0, in pixels scaled to [0, 1], as in 8/255.
        step_size: length of a step in the same units.
        steps: gradient steps of each start, at least 0.
        restarts: random starts besides the clean one.
        pixel_std: what one standardised unit is worth in pixels scaled to [0, 1], broadcast over an input.
        generator: of the random starts, on the CPU.

    Returns:
        [n], logits.
    """
    std = torch.as_tensor(pixel_std, dtype=x.dtype, device=x.device)
    project, direction = _BALLS[norm]
    best = x.new_full((len(x),), torch.inf)
    with torch.enable_grad(), running_averages_kept(model):
        for start in range(restarts + 1):
            delta = _start(x, norm, eps, generator) if start else torch.zeros_like(x)
            for step in range(steps + 1):
                point = (x + delta / std).detach().requires_grad_()
                margin = margin_of(model(point), y)
                best = torch.minimum(best, margin.detach())
                if step < steps:
                    # In pixels: d/d(pixel) = d/d(standardised) / std.
                    slope = torch.autograd.grad(margin.sum(), point)[0] / std
                    delta = project(delta - step_size * direction(slope), eps)
    return best


def margin_gradient_norm(
    model: nn.Module, x: Tensor, y: Tensor, *, dual: Norm = "l2", pixel_std: Tensor | float = 1.0
) -> Tensor:
    """The norm of grad_x m, in logits per pixel: a linearisation at x, no bound on m over a finite ball.

    Args:
        model: the network, in the mode to evaluate in.
        x: standardised inputs [n, ...].
        y: labels, int64 [n].
        dual: the ball it goes with: "l2" gives the Euclidean norm, "linf" the sum of absolute values.
        pixel_std: as for `robust_margin_upper`.

    Returns:
        [n], at least 0. To first order m_eps = m - eps times it.
    """
    std = torch.as_tensor(pixel_std, dtype=x.dtype, device=x.device)
    with torch.enable_grad(), running_averages_kept(model):
        point = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(margin_of(model(point), y).sum(), point)
    flat = (slope / std).flatten(1)
    return flat.norm(dim=1) if dual == "l2" else flat.abs().sum(dim=1)


def _lengths(delta: Tensor) -> Tensor:
    return delta.flatten(1).norm(dim=1).reshape(-1, *[1] * (delta.dim() - 1))


def _into_l2(delta: Tensor, eps: float) -> Tensor:
    return delta * (eps / _lengths(delta).clamp_min(1e-30)).clamp_max(1.0)


def _unit(slope: Tensor) -> Tensor:
    return slope / _lengths(slope).clamp_min(1e-30)


Ball = tuple[Callable[[Tensor, float], Tensor], Callable[[Tensor], Tensor]]
_BALLS: dict[str, Ball] = {
    "linf": (lambda delta, eps: delta.clamp(-eps, eps), torch.sign),
    "l2": (_into_l2, _unit),
}


def _start(x: Tensor, norm: Norm, eps: float, generator: torch.Generator | None) -> Tensor:
    """A random point of the ball: uniform in it for "linf"; for "l2" in a random direction, uniform in radius."""
    if norm == "linf":
        return ((2 * torch.rand(x.shape, generator=generator) - 1) * eps).to(x)
    direction = _unit(torch.randn(x.shape, generator=generator))
    radius = torch.rand(len(x), *[1] * (x.dim() - 1), generator=generator)
    return (direction * radius * eps).to(x)
