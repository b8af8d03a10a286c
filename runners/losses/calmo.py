"""CalMO: cross-entropy, robustness to small perturbations, and small input gradients of the margin."""

from contextlib import nullcontext
from typing import Any

import torch
from pydantic import PrivateAttr
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from analysis.plugins import Count, NonNegative, Positive
from runners.losses import Loss
from runners.losses._pgd import ascend
from runners.losses._twice import TwiceDifferentiated
from runners.passes import running_averages_kept


class CalMO(Loss):
    """CE + lambda_r KL(p(x) || p(x_adv)) + lambda_s |grad_x m(x, y)|^2, each a mean over the batch.

    The paper's section 5. p is the softmax, m the true margin z_y - max_{j != y} z_j, |.| the Euclidean norm
    over one input. x_adv comes from projected gradient ascent on cross-entropy that starts at x, and is held
    fixed: gradients pass through p(x) and p(x_adv) but not through the search. Both terms look at x in pixels
    scaled to [0, 1], which `for_data` knows; the paper names these units for eps only. Without `for_data` they
    use x as it is given.

    One clean pass serves all terms and the first step of the search. A term whose weight is 0 is not
    computed: (0, 0.01) is the paper's Flat, (0.5, 0) its Rob. Batch norm's running averages follow the clean
    pass only; with batch norm in training mode grad_x includes what an input does to the others through the
    batch's statistics.

    Attributes:
        lambda_r: weight of the robust term.
        lambda_s: weight of the gradient term.
        eps: radius of the L_inf ball, in pixels scaled to [0, 1].
        steps: steps of the search.
        step_size: length of a step, in the same units.
    """

    lambda_r: NonNegative = 0.5
    lambda_s: NonNegative = 0.01
    eps: Positive = 8 / 255
    steps: Count = 3
    step_size: Positive = 2 / 255
    _data: Any = PrivateAttr(default=None)

    def for_data(self, data: Any) -> "CalMO":
        """The same loss, told what a standardised input is worth.

        Args:
            data: has ``pixel_std``: the standard deviation that inputs were divided by, as a fraction of the
                pixel range, [C, 1, 1] or [features] (see `runners.datasets.Data`).
        """
        bound = self.model_copy()
        bound._data = data
        return bound

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if not (self.lambda_r or self.lambda_s):
            return cross_entropy(model(x), y)
        with torch.enable_grad():
            value = self._value(model, x.detach().requires_grad_(), y)
        return value if torch.is_grad_enabled() else value.detach()

    def _value(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        pixel = 1.0 if self._data is None else 1.0 / self._data.pixel_std.to(x)
        clean = TwiceDifferentiated()
        with clean if self.lambda_s else nullcontext():
            logits = model(x)
        value = cross_entropy(logits, y)
        if self.lambda_r:
            with clean.inputs_only():
                worst = ascend(
                    model,
                    x,
                    y,
                    eps=self.eps * pixel,
                    step_size=self.step_size * pixel,
                    steps=self.steps,
                    logits=logits,
                )
            with running_averages_kept(model):
                log_q = log_softmax(model(worst), dim=-1)
            log_p = log_softmax(logits, dim=-1)
            value = value + self.lambda_r * kl_div(log_q, log_p, reduction="batchmean", log_target=True)
        if self.lambda_s:
            with clean.inputs_only():
                (slope,) = torch.autograd.grad(true_margin(logits, y).sum(), x, create_graph=True)
            value = value + self.lambda_s * (slope * pixel).square().sum() / len(y)
        return value


def true_margin(logits: Tensor, y: Tensor) -> Tensor:
    """z_y - max_{j != y} z_j per sample, [n]; differentiable. Positive iff strictly correct."""
    label = y[:, None]
    rival = logits.scatter(1, label, -torch.inf).max(dim=1).values
    return logits.gather(1, label)[:, 0] - rival
