"""Checkpoints: weights, optimizer, generators and the memory of the probes."""

from typing import Any, Literal

from analysis.plugins import Count
from runners.observation import Observation
from runners.probes import Probe, Reading


class Checkpoints(Probe):
    """When the whole state is saved; the recorder writes it after the other probes of the step.

    Attributes:
        keep: "all" keeps every checkpoint; "last" only what `margintail resume` needs.
    """

    every: Count = 500
    keep: Literal["all", "last"] = "all"

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        return {}
