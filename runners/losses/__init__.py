"""Training losses, one file each; the folder is the list."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from analysis.plugins import Plugin, Registry


class Loss(Plugin):
    """A training loss: called with the model, because some losses (CalMO) differentiate in the input.

    Attributes:
        output: the convex loss on logits that defines the Gauss-Newton matrix: "ce" has the output Hessian
            diag(p) - p p^T, "mse" the constant (2/K) I.
    """

    output: ClassVar[Literal["ce", "mse"]] = "ce"

    def for_data(self, data: Any) -> "Loss":
        """The same loss, told about the data (a `runners.datasets.Data`) it will meet: what a pixel is worth."""
        return self

    @abstractmethod
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss over the batch, a scalar. ``x`` is [n, ...], ``y`` int64 [n]."""


class LogitLoss(Loss):
    """A loss that needs the logits only, so that a forward pass made for the probes serves the step as well."""

    @abstractmethod
    def of_logits(self, logits: Tensor, y: Tensor) -> Tensor:
        """Mean loss over the batch from logits [n, K] and labels int64 [n]."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.of_logits(model(x), y)


LOSSES: Registry[Loss] = Registry("runners.losses", Loss)
