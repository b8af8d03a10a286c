"""Maximum mean calibration error."""

import torch
from torch import Tensor

from analysis.plugins import Positive
from runners.losses import LogitLoss
from runners.losses._top_label import top_label


class MaximumMeanCalibrationError(LogitLoss):
    """MMCE (Kumar, Sarawagi and Jain 2018) of the batch, with a Laplacian kernel.

    ( mean_{i,j} (c_i - r_i)(c_j - r_j) exp(-|r_i - r_j| / bandwidth) )^{1/2}, where r is the confidence and c
    is 1 if the prediction is correct, else 0, without a gradient. In [0, 1]; the same number as
    `analysis.calibration.kce`.

    Not for training by itself, because a network may meet it with constant confidence: use it inside
    `weighted`. Time and memory grow with the square of the batch.

    Attributes:
        bandwidth: scale of the kernel, 0.4 in the source.
    """

    bandwidth: Positive = 0.4

    def of_logits(self, logits: Tensor, y: Tensor) -> Tensor:
        confidence, correct = top_label(logits, y)
        gap = correct - confidence
        kernel = torch.exp(-(confidence[:, None] - confidence[None, :]).abs() / self.bandwidth)
        square = gap @ kernel @ gap / len(gap) ** 2
        # Perfect calibration has no gradient rather than an infinite one.
        return square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()
