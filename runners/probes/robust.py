"""Margins under attack."""

from typing import Any

import numpy as np
import torch
from pydantic import PrivateAttr

from analysis.plugins import Count, Natural, NonNegative
from runners.attacks import margin_gradient_norm, robust_margin_upper
from runners.observation import Observation
from runners.probes import Probe, Reading


class Robust(Probe):
    """Upper estimates of the robust margin, the stream ``robust_<split>``; columns float32 [n].

    ``margin_linf_upper`` and ``margin_l2_upper`` are the least margins met by `runners.attacks.robust_margin_upper`
    from the clean point: UPPER estimates of the infimum over the ball. ``margin_linf_strong_upper`` is that of a
    stronger search, with four times the steps and ``restarts`` random starts: how far it lies below
    ``margin_linf_upper`` shows how far the estimate still moves. ``gradient_norm_l2`` is |grad_x m|_2, a
    linearisation. Radii are in pixels scaled to [0, 1]; without `for_data`, in the units of the inputs.

    Attributes:
        eps: radius of the L_inf ball.
        step_size: of the L_inf search.
        eps_l2: radius of the L_2 ball; its step is a quarter of it.
        steps: of each search.
        restarts: random starts of the stronger search; 0 leaves it out.
    """

    eps: NonNegative = 8 / 255
    step_size: NonNegative = 2 / 255
    eps_l2: NonNegative = 0.5
    steps: Count = 3
    restarts: Natural = 0
    _data: Any = PrivateAttr(default=None)

    def for_data(self, data: Any) -> "Robust":
        """The same probe, told what a pixel is worth; ``data`` has ``pixel_std`` (see `runners.datasets.Data`)."""
        bound = self.model_copy()
        bound._data = data
        return bound

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        return {f"robust_{split}": self._columns(observation, split) for split in observation.splits}

    def _columns(self, observation: Observation, split: str) -> dict[str, np.ndarray]:
        samples = observation.splits[split]
        pixel_std = 1.0 if self._data is None else self._data.pixel_std
        # The step seeds the random starts, so that a resumed run draws the same.
        generator = torch.Generator().manual_seed(observation.step)
        size = observation.chunk or len(samples.y)
        parts: list[dict[str, torch.Tensor]] = []
        for x, y in zip(samples.x.split(size), samples.y.split(size), strict=True):
            found = {
                "margin_linf_upper": robust_margin_upper(
                    observation.model,
                    x,
                    y,
                    norm="linf",
                    eps=self.eps,
                    step_size=self.step_size,
                    steps=self.steps,
                    pixel_std=pixel_std,
                ),
                "margin_l2_upper": robust_margin_upper(
                    observation.model,
                    x,
                    y,
                    norm="l2",
                    eps=self.eps_l2,
                    step_size=self.eps_l2 / 4,
                    steps=self.steps,
                    pixel_std=pixel_std,
                ),
                "gradient_norm_l2": margin_gradient_norm(observation.model, x, y, pixel_std=pixel_std),
            }
            if self.restarts:
                strong = robust_margin_upper(
                    observation.model,
                    x,
                    y,
                    norm="linf",
                    eps=self.eps,
                    step_size=self.step_size,
                    steps=4 * self.steps,
                    restarts=self.restarts,
                    pixel_std=pixel_std,
                    generator=generator,
                )
                found["margin_linf_strong_upper"] = torch.minimum(strong, found["margin_linf_upper"])
            parts.append(found)
        return {name: torch.cat([part[name] for part in parts]).float().cpu().numpy() for name in parts[0]}
