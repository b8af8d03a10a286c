"""Norms of the gradient and of the weights."""

from typing import Any, ClassVar

import torch

from runners.observation import Observation
from runners.probes import Probe, Reading


class Norms(Probe):
    """Euclidean norms of the gradient of the full training loss and of all trained weights."""

    needs_gradient: ClassVar[bool] = True

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        return {
            "scalars": {
                "gradient_norm": _norm(observation.gradient()),
                "weight_norm": _norm([p.detach() for p in observation.parameters]),
            }
        }


def _norm(tensors: list[torch.Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)), dtype=torch.float64))
