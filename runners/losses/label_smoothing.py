"""Cross-entropy against smoothed labels."""

from torch import Tensor
from torch.nn.functional import cross_entropy

from analysis.plugins import Fraction
from runners.losses import LogitLoss


class LabelSmoothing(LogitLoss):
    """Mean cross-entropy against (1 - eps) one-hot + eps/K (Szegedy et al. 2016), in nats.

    The label's own class shares in eps; other sources spread eps over the other K - 1 classes.

    Attributes:
        eps: mass taken from the label, in [0, 1]; 0 is cross-entropy.
    """

    eps: Fraction = 0.1

    def of_logits(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits, y, label_smoothing=self.eps)
