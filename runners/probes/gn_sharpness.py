"""Top eigenvalue of the Gauss-Newton matrix."""

from typing import Any

from analysis.plugins import Positive
from runners.curvature import SharpnessTracker
from runners.observation import Observation
from runners.probes import Probe, Reading


class GaussNewtonSharpness(Probe):
    """lambda_max of mean_i J_i^T H_z(p_i) J_i on the full training set, with the residual that certifies it.

    Attributes:
        tol: how well the search must end, see `runners.curvature.SharpnessTracker`.
    """

    tol: Positive = 5e-3

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        tracker = SharpnessTracker(tol=self.tol)
        if memory:
            tracker.load_state_dict(memory)
        reading = tracker.update(
            observation.model,
            observation.splits["train"].x,
            observation.loss.output,
            forward=observation.forward("train"),
            # Only the first search looks along the gradient; later ones start from the last vectors.
            gradient=None if memory else observation.gradient(),
            chunk=observation.chunk,
        )
        memory.update(tracker.state_dict())
        return {
            "scalars": {
                "lambda_max": reading.value,
                "lambda_max_residual": reading.residual,
                "lambda_second": reading.second,
                "lambda_max_products": reading.products,
                "lambda_max_guard": reading.guard,
            }
        }
