"""C1: calibration error and sharpness on the training sample are coupled in time, for every optimizer."""

from collections.abc import Sequence
from typing import ClassVar

from analysis.claims import Claim
from analysis.claims._studies import coupling_fields, missing_optimizers, paper_number, studies
from analysis.results import Verdict
from analysis.run import Run


class TrainCoupling(Claim):
    """Train ECE, and train KCE, are positively coupled with Gauss-Newton sharpness.

    Estimand: rho_seed of the logarithms, level and whitened, per optimizer and metric. Test: pairings permuted within
    learning rates, maxT. Unit: the run. Window: all recorded steps. Threshold: some abs(rho) >= .2. Falsifier: a
    significant negative rho; or a whitened 90% interval within +-.10 while both series carry run-specific signals.
    Holm over optimizers and metrics. The paper's number is a Pearson r along runs, which such curves have anyway.
    """

    title: ClassVar[str] = "C1"

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        found, verdicts = studies(runs), []
        for study in found:
            for metric in ("ece", "kce"):
                outcome, reason, fields = coupling_fields(study, metric, "lambda_max", "train")
                published = paper_number(
                    "table1", "pearson_mean", split="train", metric=metric, optimizer=study.optimizer
                )
                statement = f"train {metric.upper()} and sharpness are coupled ({study.label})"
                verdicts.append(self.verdict(statement, outcome, reason, paper=published, **fields))
        missing = missing_optimizers(found)
        if missing:
            verdicts.append(self.lacking("train ECE and sharpness are coupled (other optimizers)", missing))
        return verdicts
