"""Focal loss."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from analysis.plugins import NonNegative
from runners.losses import LogitLoss


class Focal(LogitLoss):
    """Mean of -(1 - p_y)^gamma log p_y (Lin et al. 2017), for calibration Mukhoti et al. 2020, arXiv 2002.09437.

    With the log odds u = z_y - logsumexp_{k != y} z_k it is exp(gamma log sigmoid(-u)) (-log sigmoid(u)), whose
    gradient is finite for every gamma and u: (1 - p)^gamma from p = 1 has none below gamma = 1.

    Not convex in the logits, so the "ce" output Hessian is not its own.

    Attributes:
        gamma: 0 is cross-entropy; the larger, the less a confident correct sample counts.
    """

    gamma: NonNegative = 3.0

    def of_logits(self, logits: Tensor, y: Tensor) -> Tensor:
        label = y[:, None]
        others = logits.scatter(1, label, float("-inf")).logsumexp(dim=1)
        odds = logits.gather(1, label)[:, 0] - others
        return -((self.gamma * logsigmoid(-odds)).exp() * logsigmoid(odds)).mean()
