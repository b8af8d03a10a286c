"""C3: the exponential margin moment Q is what couples calibration error and sharpness."""

from collections.abc import Sequence
from typing import ClassVar

from analysis.claims import Claim
from analysis.claims._studies import Study, studies
from analysis.mediation import mediate
from analysis.plugins import SettingError
from analysis.results import Outcome, Verdict
from analysis.run import Run


class Mediation(Claim):
    """Given Q, nothing of the coupling of train ECE and sharpness is left.

    Estimand: whitened rho_seed of what a restricted cubic spline of log Q leaves of log ECE and log sharpness. Asked
    only where the coupling is SUPPORTED. Test: pairings permuted within learning rates. Unit: the run. Window: all
    recorded steps. Threshold: the 90% interval within +-.10 and p > .05. Falsifier: residual p <= .05 with some
    abs(rho) >= .2; or a rival (loss, mean confidence, gradient norm, label-free Q) that predicts both series of a
    left-out run better than Q does.
    """

    title: ClassVar[str] = "C3 mediation"
    decided_by_p: ClassVar[bool] = False

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        found = studies(runs)
        if not found:
            return [self.lacking("Q explains the coupling", "no runs with cross-entropy")]
        return [self._explain(study) for study in found]

    def _explain(self, study: Study) -> Verdict:
        statement = f"Q explains the coupling of train ECE and sharpness ({study.label})"
        shared = {"estimand": "whitened residual rho_seed", "window": "all recorded steps", "runs": len(study.runs)}
        try:
            result = mediate(study.runs, within=("lr",))
        except SettingError as error:
            return self.verdict(statement, Outcome.INCONCLUSIVE, str(error) + study.left_out, **shared)
        numbers = {"effect": result.estimate, "interval": result.interval, "pvalue": result.pvalue}
        return self.verdict(statement, result.outcome, result.reason + study.left_out, **numbers, **shared)
