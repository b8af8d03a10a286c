"""Probes: what is measured at a step of training, one file each; the folder is the list."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from analysis.plugins import Count, Naturals, Plugin, Registry
from runners.observation import Observation

Columns = Mapping[str, Any]
Reading = Mapping[str, Columns]


class Probe(Plugin):
    """Settings of a probe, with its own cadence.

    Attributes:
        every: measured at steps 0, every, 2 every, ... and at the last step of a run.
        at: measured at these steps instead; "log" means ten steps a decade (0, 1, 2, 3, ..., 10, 12, 15, ...).
        needs_gradient: the probe reads `Observation.gradient`, so the training forward keeps its graph.
    """

    every: Count = 1
    at: Literal["log"] | Naturals | None = None
    needs_gradient: ClassVar[bool] = False

    def due(self, step: int) -> bool:
        """Whether this step is one of the probe's."""
        if self.at is None:
            return step % self.every == 0
        return log_spaced(step) if self.at == "log" else step in self.at

    def for_data(self, data: Any) -> "Probe":
        """The same probe, told about the data (a `runners.datasets.Data`) it will meet: what a pixel is worth."""
        return self

    @abstractmethod
    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        """Measure one step.

        Args:
            observation: the network at this step with its shared forward passes.
            memory: empty at the first step; what the probe leaves in it (numbers, tensors, lists and dictionaries
                of them) is handed back at the next step, and travels in checkpoints.

        Returns:
            Stream name -> column name -> value. Numbers go to the stream "scalars"; arrays to streams of their own.
        """


PROBES: Registry[Probe] = Registry("runners.probes", Probe)


def log_spaced(step: int) -> bool:
    """Whether ``step`` is 0 or the floor of 10^(k/10) for a whole k >= 0."""
    if step == 0:
        return True
    k = np.floor(10 * np.log10(step))
    return step in {int(10 ** (j / 10) + 1e-9) for j in (k, k + 1)}


def with_checkpoints(probes: dict[str, Probe]) -> dict[str, Probe]:
    """``probes``, with checkpoints to resume from where the user named none."""
    if "checkpoints" in probes:
        return probes
    return {
        **probes,
        "checkpoints": PROBES.build({"name": "checkpoints", "keep": "last"}, "probes.checkpoints"),
    }
