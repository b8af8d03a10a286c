"""Ours: the kernel calibration error tells the same story as the binned one."""

from collections.abc import Sequence
from typing import ClassVar

from analysis.claims import Claim
from analysis.claims._studies import coupling_fields, studies
from analysis.results import Verdict
from analysis.run import Run


class KceAgrees(Claim):
    """Train KCE and train ECE rise and fall together from run to run.

    Estimand: rho_seed of their logarithms. Test, unit, window, threshold and falsifier as in C1. Both come from the
    same confidences, so this says that the binning does not make the findings, not that two quantities are coupled.
    """

    title: ClassVar[str] = "KCE agrees"

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        verdicts = []
        for study in studies(runs):
            outcome, reason, fields = coupling_fields(study, "ece", "kce", "train")
            verdicts.append(self.verdict(f"train KCE agrees with train ECE ({study.label})", outcome, reason, **fields))
        return verdicts or [self.lacking("train KCE agrees with train ECE", "no runs with cross-entropy")]
