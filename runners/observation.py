"""One look at a network: the forward passes, logits and gradient that all probes of a step share."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from runners.curvature.forward import Forward, run_forward
from runners.losses import LOSSES, LogitLoss, Loss


class Samples(Protocol):
    """Inputs x [n, ...] and labels y, int64 [n], on the model's device."""

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...


class Observation:
    """The network at one step, evaluated once per split.

    Everything here comes from the same samples at the same parameters: noise in one series of a step against another
    would falsely refute mediation. The network must be in evaluation mode while the observation is read.

    Attributes:
        step: optimizer steps made so far.
        model: the network.
        loss: the training loss.
        splits: the samples by name; "train" is always there.
        parameters: the trained parameters, in the network's order.
        chunk: samples per forward pass; None takes each split whole.
    """

    def __init__(
        self,
        step: int,
        model: nn.Module,
        loss: Loss,
        splits: Mapping[str, Samples],
        *,
        keeps_graph: bool = False,
        chunk: int | None = None,
    ) -> None:
        self.step = step
        self.model = model
        self.loss = loss
        self.splits = splits
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.chunk = chunk
        self._keeps_graph = keeps_graph and isinstance(loss, LogitLoss) and self._fits("train")
        self._forwards: dict[str, Forward] = {}
        self._logits: dict[str, np.ndarray] = {}

    def _fits(self, split: str) -> bool:
        return self.chunk is None or len(self.splits[split].y) <= self.chunk

    def forward(self, split: str) -> Forward:
        """The one forward pass of a split; its logits are [n, K]."""
        if split not in self._forwards:
            self._forwards[split] = run_forward(
                self.model,
                self.splits[split].x,
                grad=self._keeps_graph and split == "train",
                chunk=None if self._fits(split) else self.chunk,
            )
        return self._forwards[split]

    def logits(self, split: str) -> np.ndarray:
        """Logits of a split, float64 [n, K]."""
        if split not in self._logits:
            self._logits[split] = self.forward(split).logits.detach().double().cpu().numpy()
        return self._logits[split]

    def labels(self, split: str) -> np.ndarray:
        """Labels of a split, int64 [n]."""
        return self.splits[split].y.cpu().numpy()

    def output_loss(self, split: str) -> float:
        """The mean loss that defines the Gauss-Newton matrix, in float64 from the logits."""
        loss = self.loss if isinstance(self.loss, LogitLoss) else LOSSES.build({"name": self.loss.output}, "loss")
        assert isinstance(loss, LogitLoss)
        return float(loss.of_logits(torch.from_numpy(self.logits(split)), self.splits[split].y.cpu()))

    @cached_property
    def loss_and_gradient(self) -> tuple[Tensor, list[Tensor]]:
        """The training loss on the whole training split and its gradient, one tensor per parameter."""
        train = self.splits["train"]
        if self._keeps_graph:
            assert isinstance(self.loss, LogitLoss)
            value = self.loss.of_logits(self.forward("train").logits, train.y)
            return value.detach(), _gradient(value, self.parameters)
        return full_gradient(self.model, self.loss, train, self.chunk)

    def gradient(self) -> list[Tensor]:
        """The gradient of the training loss on the whole training split."""
        return self.loss_and_gradient[1]


def full_gradient(
    model: nn.Module, loss: Loss, samples: Samples, chunk: int | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Mean loss over all samples and its gradient, one tensor per trained parameter.

    Args:
        model: the network, in the mode to differentiate in.
        loss: the training loss.
        samples: inputs and labels.
        chunk: samples per pass; the sum over chunks bounds memory.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    n = len(samples.y)
    size = chunk or n
    value: Any = 0.0
    total: list[Tensor] = []
    for first in range(0, n, size):
        x, y = samples.x[first : first + size], samples.y[first : first + size]
        part = loss(model, x, y) * (len(y) / n)
        gradient = _gradient(part, parameters)
        value = value + part.detach()
        if total:
            torch._foreach_add_(total, gradient)
        else:
            total = gradient
    return value, total


def _gradient(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]


def mode_matters(model: nn.Module) -> bool:
    """Whether the network computes something else in training than in evaluation (batch norm, dropout)."""
    return any(isinstance(module, _NormBase | _DropoutNd) for module in model.modules())
