"""Top eigenvalue of the Hessian."""

from typing import Any

import torch

from analysis.plugins import Positive
from runners.curvature import hessian_top
from runners.observation import Observation
from runners.probes import Probe, Reading


class HessianSharpness(Probe):
    """lambda_max of the Hessian of the full training loss; not the Gauss-Newton value, which is usually smaller.

    Attributes:
        tol: relative residual at which the search stops.
    """

    tol: Positive = 1e-3

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        train = observation.splits["train"]
        values, vectors, residuals = hessian_top(
            observation.model,
            train.x,
            train.y,
            observation.loss,
            k=1,
            tol=self.tol,
            start=memory.get("vectors"),
            chunk=observation.chunk,
        )
        memory["vectors"] = vectors
        return {
            "scalars": {
                "hessian_lambda_max": float(values[0]),
                "hessian_lambda_max_residual": float(torch.as_tensor(residuals)[0]),
            }
        }
