"""Ours: under full-batch gradient descent sharpness rises to the edge of stability, 2/eta."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from analysis.claims import Claim
from analysis.claims._contrasts import decide_equal, mean
from analysis.claims._studies import studies
from analysis.plugins import SettingError
from analysis.results import Verdict
from analysis.run import Run
from analysis.summary import edge

MARGIN = math.log(1.2)


class Edge(Claim):
    """Peak Gauss-Newton sharpness under GD is 2/eta.

    Estimand: mean over runs of log(peak sharpness / (2/eta)). Test: t over runs; equivalence by two one-sided tests
    with margin log 1.2. Unit: the run. Window: all recorded steps. Falsifier: p <= .05 and a mean off by the margin
    or more. A single high reading makes a peak, so it overshoots a little where sharpness hovers; and the stability
    edge is that of the Hessian, which the Gauss-Newton matrix meets only where the fit is good.
    """

    title: ClassVar[str] = "edge"
    decided_by_p: ClassVar[bool] = False

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        verdicts = []
        for study in (s for s in studies(runs, loss=None) if s.optimizer == "gd"):
            statement = f"peak sharpness is 2/eta ({study.label}, {study.loss.get('name', 'unnamed')} loss)"
            shared = {"estimand": "log(peak sharpness x eta / 2)", "window": "all recorded steps"}
            try:
                logs = [_log_peak(run) for run in study.runs]
            except SettingError as error:
                verdicts.append(self.lacking(statement, str(error), **shared))
                continue
            found = mean(logs)
            if found is None:
                verdicts.append(self.lacking(statement, f"{len(logs)} runs: expected 3 or more", **shared))
                continue
            outcome, reason = decide_equal(found, 0.0, MARGIN)
            numbers = {"effect": found.value, "interval": found.interval(), "pvalue": found.pvalue()}
            verdicts.append(
                self.verdict(statement, outcome, reason + study.left_out, runs=len(logs), **numbers, **shared)
            )
        return verdicts or [self.lacking("peak sharpness is 2/eta", "no runs of gd")]


def _log_peak(run: Run) -> float:
    values = run.metric("lambda_max", "train").to_numpy(np.float64)
    if not len(values) or not 0 < values.max() < np.inf:
        raise SettingError(f"run {run.id}: no positive and finite value of lambda_max")
    return math.log(values.max() / edge(run))
