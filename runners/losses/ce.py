"""Cross-entropy."""

from torch import Tensor
from torch.nn.functional import cross_entropy

from runners.losses import LogitLoss


class CrossEntropy(LogitLoss):
    """Mean cross-entropy, in nats."""

    def of_logits(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits, y)
