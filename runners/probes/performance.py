"""Loss and accuracy."""

from typing import Any

from runners.observation import Observation
from runners.probes import Probe, Reading


class Performance(Probe):
    """Loss and accuracy of every split. Recorded at each step at which any probe is due: they cost nothing more.

    The loss is computed in float64 from the logits. For a training loss that needs more than logits it is the loss
    that defines the curvature, `Loss.output`: cross-entropy for CalMO.
    """

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        columns: dict[str, float] = {}
        for split in observation.splits:
            columns[f"loss_{split}"] = observation.output_loss(split)
            logits, labels = observation.logits(split), observation.labels(split)
            columns[f"accuracy_{split}"] = float((logits.argmax(axis=1) == labels).mean())
        return {"scalars": columns}
