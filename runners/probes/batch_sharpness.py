"""Batch sharpness."""

from typing import Any

import torch

from analysis.plugins import Count
from runners.curvature import batch_sharpness
from runners.observation import Observation
from runners.probes import Probe, Reading


class BatchSharpness(Probe):
    """E over minibatches of g^T H g / |g|^2 (Andreyev & Beneventano 2024, arXiv 2412.20553), with its standard error.

    Attributes:
        batch_size: samples of a minibatch; give the optimizer's own.
        batches: minibatches drawn a step, from a generator that is the probe's own.
    """

    batch_size: Count = 50
    batches: Count = 16

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        train = observation.splits["train"]
        generator = torch.Generator().manual_seed(observation.step)
        mean, standard_error = batch_sharpness(
            observation.model, train.x, train.y, observation.loss, self.batch_size, self.batches, generator
        )
        return {"scalars": {"batch_sharpness": mean, "batch_sharpness_standard_error": standard_error}}
