"""Squared error of logits against one-hot labels."""

from typing import ClassVar, Literal

from torch import Tensor
from torch.nn.functional import mse_loss, one_hot

from runners.losses import LogitLoss


class MeanSquaredError(LogitLoss):
    """Mean over samples and classes of (z_k - [k = y])^2, the paper's section E.

    Not a proper score of the softmax of the logits: at its optimum the confidence is e/(e+K-1).
    """

    output: ClassVar[Literal["ce", "mse"]] = "mse"

    def of_logits(self, logits: Tensor, y: Tensor) -> Tensor:
        return mse_loss(logits, one_hot(y, logits.shape[-1]).to(logits.dtype))
