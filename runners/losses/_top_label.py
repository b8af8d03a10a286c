"""Confidence and correctness of the top label, differentiable in the confidence."""

import torch
from torch import Tensor


def top_label(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What calibration losses compare.

    Args:
        logits: [n, K].
        y: labels, int64 [n].

    Returns:
        The top probability [n], and 1.0 where its class (the first of a tie) is the label, else 0.0; the
        second has no gradient.
    """
    confidence, predicted = torch.softmax(logits, dim=-1).max(dim=-1)
    return confidence, (predicted == y).to(logits.dtype)
