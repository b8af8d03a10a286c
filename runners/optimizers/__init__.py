"""Optimizers, one file each; the folder is the list."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from analysis.plugins import Count, Plugin, Positive, Registry
from runners.losses import Loss


@dataclass(frozen=True)
class Objective:
    """What is minimised: a loss of a model on the whole training set, for optimizers that look beyond a gradient.

    Attributes:
        model: the network; its parameters are the ones being optimised.
        loss: the training loss.
        x: training inputs, [n, ...], on the model's device.
        y: training labels, int64 [n].
    """

    model: nn.Module
    loss: Loss
    x: Tensor
    y: Tensor


class Optimizer(Plugin):
    """Settings of an optimizer.

    Attributes:
        lr: step size eta.
        batch_size: samples per step; None takes the whole training set.
    """

    lr: Positive
    batch_size: Count | None = None

    @abstractmethod
    def build(self, params: Iterable[nn.Parameter], objective: Objective) -> torch.optim.Optimizer:
        """The torch optimizer; the training loop always calls its ``step(closure)``.

        The closure zeroes the gradients, computes the loss of the current batch, calls backward and returns the loss;
        it may be called several times a step.
        """


OPTIMIZERS: Registry[Optimizer] = Registry("runners.optimizers", Optimizer)
