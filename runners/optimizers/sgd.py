"""Stochastic gradient descent."""

from collections.abc import Iterable

import torch
from torch import nn

from analysis.plugins import Count, NonNegative
from runners.optimizers import Objective, Optimizer
from runners.optimizers._shared import Decay, Nesterov, one_kernel, trained


class StochasticGradientDescent(Optimizer):
    """`torch.optim.SGD` on minibatches.

    v <- momentum v + g and theta <- theta - lr v, where g is the batch's gradient plus weight_decay theta. With
    momentum the full batch's edge of stability is 2 (1 + momentum) / lr, and with Nesterov's form
    2 (1 + momentum) / (1 + 2 momentum) / lr (Cohen et al. 2021, arXiv 2103.00065).

    Attributes:
        momentum: weight of the past steps, in [0, 1).
        weight_decay: strength of the L2 penalty weight_decay/2 * |theta|^2, added to the gradient.
        nesterov: look-ahead form of the momentum.
    """

    batch_size: Count | None = 50
    momentum: Decay = 0.0
    weight_decay: NonNegative = 0.0
    nesterov: Nesterov = False

    def build(self, params: Iterable[nn.Parameter], objective: Objective) -> torch.optim.Optimizer:
        chosen = trained(params)
        return torch.optim.SGD(
            chosen,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            fused=one_kernel(chosen),
        )
