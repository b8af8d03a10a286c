"""Gradient descent on the full batch."""

from collections.abc import Iterable
from typing import Any

import torch
from pydantic import field_validator
from torch import nn

from runners.optimizers import Objective, Optimizer
from runners.optimizers._shared import trained


class GradientDescent(Optimizer):
    """theta <- theta - lr * gradient of the loss on the whole training set.

    The sharpness of its runs rises to about 2/lr and hovers there (Cohen et al. 2021, arXiv 2103.00065). It
    has neither momentum nor weight decay, both of which move that edge; `sgd` with as many samples per batch
    as there are has them.
    """

    @field_validator("batch_size", mode="before")
    @classmethod
    def _full_batch_only(cls, batch_size: Any) -> Any:
        if batch_size is not None:
            raise ValueError("gd takes the whole training set at each step; accepted: no batch_size (or name = 'sgd')")
        return batch_size

    def build(self, params: Iterable[nn.Parameter], objective: Objective) -> torch.optim.Optimizer:
        return torch.optim.SGD(trained(params), lr=self.lr)
