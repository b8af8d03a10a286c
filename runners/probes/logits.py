"""Raw logits."""

from typing import Any

import numpy as np

from runners.observation import Observation
from runners.probes import Probe, Reading


class Logits(Probe):
    """The logits of every split, float32 [n, K]; class-wise metrics and post-hoc calibrators need them."""

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        return {
            f"logits_{split}": {"logits": observation.logits(split).astype(np.float32)} for split in observation.splits
        }
