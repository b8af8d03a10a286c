"""Adam with decoupled weight decay."""

from collections.abc import Iterable

import torch
from torch import nn

from analysis.plugins import Count, NonNegative, Positive
from runners.optimizers import Objective, Optimizer
from runners.optimizers._shared import Decay, one_kernel, trained


class AdamW(Optimizer):
    """`torch.optim.AdamW` (Loshchilov and Hutter 2019, arXiv 1711.05101).

    Its stability is governed by the preconditioned Hessian, so 2/lr is no edge for lambda_max.

    Attributes:
        beta1: decay of the mean of gradients, in [0, 1).
        beta2: decay of the mean of squared gradients, in [0, 1).
        eps: added to the root of the mean square.
        weight_decay: each step first shrinks the weights by the factor 1 - lr * weight_decay (torch's
            default, 0.01).
    """

    batch_size: Count | None = 50
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.01

    def build(self, params: Iterable[nn.Parameter], objective: Objective) -> torch.optim.Optimizer:
        chosen = trained(params)
        return torch.optim.AdamW(
            chosen,
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=one_kernel(chosen),
        )
