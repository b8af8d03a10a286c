"""Cross-entropy weighed against a calibration loss."""

from typing import Annotated, Any

from pydantic import BeforeValidator, field_serializer
from torch import Tensor
from torch.nn.functional import cross_entropy

from analysis.plugins import Fraction, SettingError
from runners.losses import LOSSES, LogitLoss


def _build(table: Any) -> Any:
    if isinstance(table, LogitLoss):
        return table
    loss = LOSSES.build(table, "calibration")
    if not isinstance(loss, LogitLoss):
        raise SettingError(f"{loss.name} needs more than logits; accepted: a loss of logits, such as 'mmce'")
    return loss


class WeightedCalibration(LogitLoss):
    """(1 - w) CE + w L_cal.

    Attributes:
        calibration: L_cal, a table such as ``{ name = "mmce" }``.
        w: weight of L_cal, in [0, 1]; 0 is cross-entropy, 1 leaves nothing that asks for accuracy.
    """

    calibration: Annotated[LogitLoss, BeforeValidator(_build)]
    w: Fraction = 0.5

    @field_serializer("calibration")
    def _table(self, calibration: LogitLoss) -> dict[str, Any]:
        return calibration.table()

    def of_logits(self, logits: Tensor, y: Tensor) -> Tensor:
        return (1 - self.w) * cross_entropy(logits, y) + self.w * self.calibration.of_logits(logits, y)
