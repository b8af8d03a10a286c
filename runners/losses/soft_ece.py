"""Expected calibration error over soft bins."""

from typing import Literal

import torch
from torch import Tensor

from analysis.plugins import Count, Positive
from runners.losses import LogitLoss
from runners.losses._top_label import top_label


class SoftBinnedCalibrationError(LogitLoss):
    """SB-ECE (Karandikar et al. 2021, arXiv 2108.00106) of the batch.

    A confidence r belongs to bin b with weight u_b(r), the softmax over bins of -(r - xi_b)^2 / temperature,
    xi_b the centre of the b-th of ``bins`` equal intervals of [0, 1]. With n_b = sum_i u_b(r_i) and the
    u-weighted mean accuracy A_b and confidence C_b, the value is ( sum_b (n_b / n) |A_b - C_b|^p )^{1/p}. In
    [0, 1]. As the temperature falls it becomes the binned ECE. Correctness has no gradient.

    Not for training by itself, because a network may meet it with constant confidence: use it inside
    `weighted`.

    Attributes:
        bins: number of bins M.
        temperature: softness of the bins.
        norm: "l1" for p = 1, "l2" for p = 2.
    """

    bins: Count = 15
    temperature: Positive = 0.01
    norm: Literal["l1", "l2"] = "l2"

    def of_logits(self, logits: Tensor, y: Tensor) -> Tensor:
        confidence, correct = top_label(logits, y)
        bins = torch.arange(self.bins, dtype=confidence.dtype, device=confidence.device)
        centres = (bins + 0.5) / self.bins
        weights = torch.softmax(-((confidence[:, None] - centres) ** 2) / self.temperature, dim=1)
        gaps = (correct - confidence) @ weights
        if self.norm == "l1":
            return gaps.abs().sum() / len(y)
        # (n_b / n) (gap_b / n_b)^2; a bin so far from all confidences that its size underflows is empty.
        tiny = torch.finfo(weights.dtype).tiny
        squares = (gaps**2 / weights.sum(dim=0).clamp_min(tiny)).sum() / len(y)
        return squares.clamp_min(tiny).sqrt()
