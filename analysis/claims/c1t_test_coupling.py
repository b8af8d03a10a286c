"""C1t: out of sample the coupling is strong for GD, SGD and SAM, and absent for AdamW and Muon."""

from collections.abc import Sequence
from typing import ClassVar

from analysis.claims import Claim
from analysis.claims._studies import coupling_fields, missing_optimizers, paper_number, studies
from analysis.results import Outcome, Verdict
from analysis.run import Run

ABSENT = ("adamw", "muon")
_OPPOSITE = {
    Outcome.SUPPORTED: Outcome.REFUTED,
    Outcome.REFUTED: Outcome.SUPPORTED,
    Outcome.INCONCLUSIVE: Outcome.INCONCLUSIVE,
}


class TestCoupling(Claim):
    """Test ECE, and test KCE, are coupled with training sharpness for GD, SGD and SAM, not for AdamW and Muon.

    Estimand, test, unit, window and threshold as in C1, with the metric on the test sample. Sharpness is that of the
    training sample, so the two are not of the same samples, and a weak coupling may be due to that. Falsifier: as in
    C1 for GD, SGD and SAM; for AdamW and Muon, a coupling that is SUPPORTED. "Absent" is SUPPORTED only where the
    coupling is REFUTED; a test that finds nothing is not enough. Optimizers of which the paper says nothing are
    judged as GD is.
    """

    __test__: ClassVar[bool] = False  # not a test case, whatever pytest makes of the name
    title: ClassVar[str] = "C1t"

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        found, verdicts = studies(runs), []
        for study in found:
            absent = study.optimizer in ABSENT
            for metric in ("ece", "kce"):
                outcome, reason, fields = coupling_fields(study, metric, "lambda_max", "test")
                published = paper_number(
                    "table1", "pearson_mean", split="test", metric=metric, optimizer=study.optimizer
                )
                if absent:
                    outcome, reason = _OPPOSITE[outcome], f"the coupling is {outcome}: {reason}"
                state = "not coupled" if absent else "coupled"
                statement = f"test {metric.upper()} and sharpness are {state} ({study.label})"
                verdicts.append(self.verdict(statement, outcome, reason, paper=published, **fields))
        missing = missing_optimizers(found)
        if missing:
            verdicts.append(self.lacking("test ECE and sharpness (other optimizers)", missing))
        return verdicts
