"""Is the tracked lambda_max the largest eigenvalue? A search from nothing, at a random sample of steps."""

from typing import Any

import numpy as np

from analysis.plugins import Count, Positive
from runners.curvature import GaussNewton
from runners.observation import Observation
from runners.probes import Probe, Reading


class SharpnessAudit(Probe):
    """lambda_max of the Gauss-Newton matrix of the training set, found without what is known of other steps.

    The column ``lambda_max_audit`` beside ``lambda_max``, which `gn_sharpness` follows from step to step: where the two
    differ by more than their residuals, the tracker was on another eigenvalue. An audit costs about as much as twenty
    tracked steps.

    Attributes:
        every: one step in so many is audited, chosen at random, and the last. ``at`` names the steps instead.
        tol: relative residual of the search, which works in the network's own precision.
    """

    every: Count = 100
    tol: Positive = 1e-4

    def due(self, step: int) -> bool:
        """Whether the step is one of the sample, the same for every run."""
        if self.at is None:
            return bool(np.random.default_rng(step).random() < 1 / self.every)
        return super().due(step)

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        matrix = GaussNewton(
            observation.model,
            observation.splits["train"].x,
            observation.loss.output,
            forward=observation.forward("train"),
            chunk=observation.chunk,
        )
        values, _, residuals = matrix.top(1, self.tol, seed=observation.step)
        return {"scalars": {"lambda_max_audit": float(values[0]), "lambda_max_audit_residual": float(residuals[0])}}
