"""C3: one functional, Q, bounds calibration error and sharpness."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analysis.bounds import ViolationError, waterfall
from analysis.claims import Claim
from analysis.claims._studies import Study, studies
from analysis.plugins import SettingError
from analysis.results import Outcome, Verdict
from analysis.run import Run

LINKS = (
    ("train ECE <= (K-1) Q, and Q/K <= ECE once interpolating", "ece", "bound_ece", "ece_vacuous"),
    ("lambda_max <= 2 C_J^2 (K-1) Q", "lambda_max", "bound_lambda", "lambda_vacuous"),
)
"""Statement, what is bounded, its bound, and whether that says nothing: columns of `analysis.bounds.waterfall`."""


class Bounds(Claim):
    """ECE <= (K-1) Q and lambda_max <= 2 C_J^2 (K-1) Q at every step; Q/K <= ECE where all samples are correct.

    A theorem of the paper (T4.1, T4.2), so there is no test and no p: a violation would be an error of measurement.
    Estimand: share of the steps at which the bound says nothing, because (K-1) Q >= 1 for ECE, or because the bound is
    above C_J^2 / 2, which holds of any network. Unit: the step of a run. Window: all steps at which both sides were
    recorded. Falsifier: one step at which a link of the chain fails by more than rounding can do.
    """

    title: ClassVar[str] = "C3 bounds"
    command: ClassVar[str] = "margintail run demo --set probes.jacobian.every=1"
    decided_by_p: ClassVar[bool] = False

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        found = studies(runs)
        if not found:
            return [self.lacking("Q bounds ECE and sharpness", "no runs with cross-entropy")]
        return [verdict for study in found for verdict in self._of_study(study)]

    def _of_study(self, study: Study) -> list[Verdict]:
        shared = {"estimand": "share of vacuous steps", "window": "all recorded steps", "runs": len(study.runs)}
        try:
            frames = [waterfall(run) for run in study.runs]
        except SettingError as error:
            return [self.lacking(f"{link[0]} ({study.label})", str(error), **shared) for link in LINKS]
        except ViolationError as error:
            return [self.verdict(f"Q bounds ECE and sharpness ({study.label})", Outcome.REFUTED, str(error), **shared)]
        steps = pd.concat(frames)
        return [self._link(study, steps, *link, shared) for link in LINKS]

    def _link(
        self, study: Study, steps: pd.DataFrame, text: str, value: str, bound: str, vacuous: str, shared: dict[str, Any]
    ) -> Verdict:
        statement = f"{text} ({study.label})"
        if bound not in steps or not (measured := steps[[value, bound]].notna().all(axis=1)).any():
            return self.lacking(statement, f"no step at which {value} and its bound were recorded", **shared)
        inside = steps[measured]
        share = float(inside[vacuous].mean())
        positive = inside[inside[value] > 0]
        ratio = float(np.median(positive[bound] / positive[value])) if len(positive) else float("nan")
        reason = (
            f"no violation in {len(inside)} steps; vacuous at {share:.0%} of them; median of bound / value {ratio:.3g}"
        )
        return self.verdict(statement, Outcome.SUPPORTED, reason + study.left_out, effect=share, **shared)
