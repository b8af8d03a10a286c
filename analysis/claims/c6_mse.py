"""C6: under MSE neither sharpness nor train ECE collapses."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from analysis.claims import Claim
from analysis.claims._contrasts import decide_above, mean
from analysis.claims._studies import Study, final, studies
from analysis.plugins import SettingError
from analysis.results import Verdict
from analysis.run import Run

COLLAPSED = 0.2
"""A series has collapsed that ends below this share of its peak."""


class MeanSquaredError(Claim):
    """Runs with MSE on the logits keep their sharpness, and their train ECE, near the peak.

    Estimand: mean over runs of log(end / peak) - log .2. Test: t over runs. Unit: the run. Window: the peak over all
    recorded steps, the end as the mean over the last tenth of them. Threshold: 0, at p <= .05. Falsifier: a mean below
    0 at p <= .05, a fall to less than a fifth of the peak.
    """

    title: ClassVar[str] = "C6"
    command: ClassVar[str] = "margintail reproduce figA19 --scale smoke"

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        found = studies(runs, "mse")
        if not found:
            return [self.lacking("neither sharpness nor train ECE collapses under MSE", "no runs with MSE")]
        return [self._kept(study, name) for study in found for name in ("lambda_max", "ece")]

    def _kept(self, study: Study, name: str) -> Verdict:
        text = {"lambda_max": "sharpness", "ece": "train ECE"}[name]
        statement = f"{text} does not collapse under MSE ({study.label})"
        shared = {"estimand": f"log(end / peak) - log .2 of {text}", "window": "all recorded steps"}
        try:
            logs = [_log_kept(run, name) - math.log(COLLAPSED) for run in study.runs]
        except SettingError as error:
            return self.lacking(statement, str(error), **shared)
        contrast = mean(logs)
        if contrast is None:
            return self.lacking(statement, f"{len(logs)} runs: expected 3 or more", **shared)
        outcome, reason = decide_above(contrast, 0.0)
        numbers = {"effect": contrast.value, "interval": contrast.interval(), "pvalue": contrast.pvalue()}
        return self.verdict(statement, outcome, reason + study.left_out, runs=len(logs), **numbers, **shared)


def _log_kept(run: Run, name: str) -> float:
    end = final(run, name)
    peak = float(np.max(run.metric(name, "train").to_numpy(np.float64)))
    if end <= 0 or not np.isfinite(peak):
        raise SettingError(f"run {run.id}: {name} ends at {end:g} with a peak of {peak:g}; expected positive values")
    return math.log(end / peak)
