"""Mixup: cross-entropy on convex combinations of pairs."""

import zlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analysis.plugins import Positive
from runners.losses import Loss


class Mixup(Loss):
    """Cross-entropy on pairs (Zhang et al. 2018, arXiv 1710.09412).

    Sample i is paired with sample j of the same batch by a random permutation, and mixed with a weight t
    drawn from Beta(alpha, alpha) for each pair. With x = t x_i + (1-t) x_j, the loss is the mean of
    t CE(z(x), y_i) + (1-t) CE(z(x), y_j).

    Pairs and weights are drawn from a generator seeded by the batch itself. So the loss is a function of its
    arguments: the two passes of SAM see the same pairs, a probe that evaluates it leaves training as it was,
    and resume is exact. Batches drawn anew give new pairs; for the full batch, which is the same at each
    step, they never change.

    Attributes:
        alpha: both parameters of the Beta distribution. Calibration was studied at 0.2 to 0.4 (Thulasidasan
            et al. 2019, arXiv 1905.11001); as alpha falls to 0 pairs are no longer mixed.
    """

    alpha: Positive = 0.2

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        partner, t = pairs(x, y, self.alpha)
        along = t.reshape(-1, *[1] * (x.ndim - 1))
        logits = model(along * x + (1 - along) * x[partner])
        own = cross_entropy(logits, y, reduction="none")
        other = cross_entropy(logits, y[partner], reduction="none")
        return (t * own + (1 - t) * other).mean()


def pairs(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Partners and weights of a batch, the same whenever the batch is.

    Returns:
        A permutation of the rows, int64 [n], and the weight of a row's own sample, [n] in [0, 1].
    """
    # About a thousand entries tell batches apart; all of them would have to travel from the device at each
    # step.
    entries = x.detach().flatten()
    entries = entries[:: max(1, entries.numel() // 1024)]
    seed = zlib.crc32(entries.cpu().numpy().tobytes(), zlib.crc32(y.cpu().numpy().tobytes()))
    generator = np.random.default_rng(seed)
    partner = torch.from_numpy(generator.permutation(len(y))).to(x.device)
    weights = torch.from_numpy(generator.beta(alpha, alpha, len(y))).to(x.device, x.dtype)
    return partner, weights
