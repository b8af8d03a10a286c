"""C3: calibration error and sharpness follow Q with one exponent, 1."""

from collections.abc import Sequence
from typing import ClassVar

from analysis.claims import Claim
from analysis.claims._studies import Study, studies
from analysis.exponents import exponents
from analysis.panel import Window
from analysis.plugins import SettingError
from analysis.results import Outcome, Verdict
from analysis.run import Run

WINDOWS: tuple[tuple[Window, str], ...] = (("all", "all recorded steps"), ("interpolating", "interpolating steps"))


class Exponents(Claim):
    """log train ECE and log sharpness grow with log Q at the slope 1, and at the same slope.

    Estimand: mean over runs of the slope along a run, of either series (1) and of their difference (0). Test: t over
    runs; equivalence by two one-sided tests with margin .2. Unit: the run. Windows: all recorded steps, and the steps
    at which all runs of the learning rate interpolate. Falsifier: p <= .05 and a mean that is off by .2 or more.
    """

    title: ClassVar[str] = "C3 exponents"
    decided_by_p: ClassVar[bool] = False

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        found = studies(runs)
        if not found:
            return [self.lacking("ECE and sharpness share an exponent in Q", "no runs with cross-entropy")]
        return [verdict for study in found for window in WINDOWS for verdict in self._slopes(study, *window)]

    def _slopes(self, study: Study, window: Window, text: str) -> list[Verdict]:
        shared = {"window": text, "runs": len(study.runs)}
        nothing = f"ECE and sharpness share an exponent in Q ({study.label})"
        try:
            result = exponents(study.runs, within=("lr",), window=window)
        except SettingError as error:
            return [self.verdict(nothing, Outcome.INCONCLUSIVE, str(error) + study.left_out, **shared)]
        if not result.slopes:
            return [self.verdict(nothing, Outcome.INCONCLUSIVE, result.reason + study.left_out, **shared)]
        names = ("train ECE grows as Q", "sharpness grows as Q", "ECE and sharpness share an exponent in Q")
        estimands = ("alpha of ECE", "alpha of sharpness", "difference of exponents")
        return [
            self.verdict(
                f"{name} ({study.label})",
                slope.outcome,
                f"{slope.mean:.3g} against {slope.claimed:g}, 90% interval "
                f"[{slope.interval_90[0]:.3g}, {slope.interval_90[1]:.3g}], margin .2{study.left_out}",
                estimand=estimand,
                effect=slope.mean,
                interval=slope.interval,
                pvalue=slope.pvalue,
                window=text,
                runs=len(result.per_run),
            )
            for name, estimand, slope in zip(names, estimands, result.slopes, strict=True)
        ]
