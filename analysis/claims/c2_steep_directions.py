"""C2: methods that suppress steep directions calibrate better in sample than flat-minima methods."""

import math
from collections.abc import Sequence
from typing import ClassVar

from analysis.claims import Claim
from analysis.claims._contrasts import decide_above, difference
from analysis.claims._studies import Study, by_rate, final, studies
from analysis.plugins import SettingError
from analysis.results import Outcome, Verdict
from analysis.run import Run

SUPPRESSING = ("muon", "bulk_sgd")
THRESHOLD = math.log(1.25)


class SteepDirections(Claim):
    """Muon, and BulkSGD, end with a lower train ECE than SAM.

    Estimand: log of SAM's train ECE over theirs; learning rates count equally. Test: t with variances within learning
    rates (Satterthwaite). Unit: the run. Window: each is the mean over the last tenth of the recorded steps. Threshold:
    log 1.25, a quarter more. Falsifier: the other sign at p <= .05, or a 95% interval below the threshold. It compares
    the recorded learning rates, whatever they are, not each method at its best.
    """

    title: ClassVar[str] = "C2"

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        found = studies(runs)
        verdicts = []
        for name in SUPPRESSING:
            pairs = [
                (study, sam)
                for study in found
                for sam in found
                if (study.optimizer, sam.optimizer) == (name, "sam") and study.context == sam.context
            ]
            verdicts += [self._compare(study, sam) for study, sam in pairs]
            if not pairs:
                verdicts.append(
                    self.lacking(f"{name} has a lower train ECE than sam", f"no runs of {name} and sam to compare")
                )
        return verdicts

    def _compare(self, study: Study, sam: Study) -> Verdict:
        statement = f"{study.label} has a lower train ECE than {sam.label}"
        window = "last tenth of the recorded steps"
        runs = len(study.runs) + len(sam.runs)
        shared = {"estimand": "log ratio of train ECE", "window": window, "runs": runs}
        try:
            logs = [by_rate(s, [_log_ece(run) for run in s.runs]) for s in (sam, study)]
        except SettingError as error:
            return self.lacking(statement, str(error), **shared)
        contrast = difference(*logs)
        if contrast is None:
            return self.lacking(statement, "expected 2 or more seeds at each learning rate", **shared)
        outcome, reason = decide_above(contrast, THRESHOLD)
        numbers = {"effect": contrast.value, "interval": contrast.interval(), "pvalue": contrast.pvalue()}
        return self.verdict(statement, Outcome(outcome), reason + study.left_out, **numbers, **shared)


def _log_ece(run: Run) -> float:
    value = final(run, "ece")
    if value <= 0:
        raise SettingError(f"run {run.id}: its final train ECE is {value:g}, which has no logarithm")
    return math.log(value)
