"""Per-sample margins and confidences."""

from typing import Any

import numpy as np

from analysis import margins
from runners.observation import Observation
from runners.probes import Probe, Reading


class Examples(Probe):
    """What calibration metrics, margins and bounds are computed from, per sample and split.

    Computed in float64 from the logits, kept as float32. Confidences are kept as log(1 - confidence), because
    1 - confidence itself is 0 in float32 from a margin of about 17 on.
    """

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        return {
            f"examples_{split}": example_columns(observation.logits(split), observation.labels(split))
            for split in observation.splits
        }


def example_columns(logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of an examples stream from float64 logits [n, K] and labels [n]."""
    return {
        "margin": margins.true_margin(logits, labels).astype(np.float32),
        "predicted_margin": margins.predicted_margin(logits).astype(np.float32),
        "correct": logits.argmax(axis=1) == labels,
        "log_one_minus_confidence": margins.log_one_minus_confidence(logits).astype(np.float32),
        "log_one_minus_p_true": margins.log_one_minus_p_true(logits, labels).astype(np.float32),
    }
