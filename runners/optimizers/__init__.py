"""Optimizers, one file each; the folder is the list."""

import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator
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
        chunk: samples per pass, which bounds memory; None takes all at once.
    """

    model: nn.Module
    loss: Loss
    x: Tensor
    y: Tensor
    chunk: int | None = None


def step_size(value: Any) -> Any:
    """A step size written by its edge, "2/30", as a number; anything else as it is."""
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*/\s*(\d+\.?\d*)\s*", value) if isinstance(value, str) else None
    return float(match[1]) / float(match[2]) if match and float(match[2]) else value


class Optimizer(Plugin):
    """Settings of an optimizer.

    Attributes:
        lr: step size eta; a string such as "2/30" names it by its edge 2/eta = 30, as the paper does.
        batch_size: samples per step; None takes the whole training set.
    """

    lr: Annotated[Positive, BeforeValidator(step_size)]
    batch_size: Count | None = None

    @abstractmethod
    def build(self, params: Iterable[nn.Parameter], objective: Objective) -> torch.optim.Optimizer:
        """The torch optimizer; the training loop always calls its ``step(closure)``.

        The closure zeroes the gradients, computes the loss of the current batch, calls backward and returns the loss;
        it may be called several times a step.
        """


OPTIMIZERS: Registry[Optimizer] = Registry("runners.optimizers", Optimizer)
