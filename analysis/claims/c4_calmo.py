"""C4: CalMO lowers test ECE for every optimizer, and does not lower accuracy."""

from collections.abc import Sequence
from typing import ClassVar

from analysis.claims import Claim
from analysis.claims._contrasts import decide_above, mean
from analysis.claims._regularised import Twins, twins
from analysis.claims._studies import paper_number
from analysis.plugins import SettingError
from analysis.results import Verdict
from analysis.run import Run
from analysis.selection import WORDS

GAIN = 0.005
"""Smallest drop of test ECE that counts."""
TOLERATED = 0.01
"""Loss of test accuracy up to which it is not lowered."""


class Calmo(Claim):
    """CalMO against cross-entropy, optimizer by optimizer.

    Estimand: mean over pairs of runs of the same optimizer, learning rate and seed, of test ECE under CE less that
    under CalMO (15 bins); and of test accuracy under CalMO less that under CE, plus one point. Test: t over pairs.
    Unit: the pair. Window: the step of least validation loss, or the last where there is no validation split.
    Threshold: .005 of ECE; an accuracy not lower by one point. Falsifier: the other sign at p <= .05, or a 95%
    interval below the threshold. Holm over optimizers and both quantities.
    """

    title: ClassVar[str] = "C4"
    command: ClassVar[str] = "margintail reproduce table2 --scale smoke"

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        found = twins(runs)
        if not found:
            return [self.lacking("CalMO lowers test ECE", "no pairs of runs with CalMO and with cross-entropy")]
        return [verdict for pairs in found for verdict in (self._calibration(pairs), self._accuracy(pairs))]

    def _calibration(self, pairs: Twins) -> Verdict:
        published = [
            paper_number("table2", "test_ece", optimizer=pairs.optimizer, method=method) for method in ("ce", "calmo")
        ]
        paper = None if published[0] is None or published[1] is None else published[0] - published[1]
        return self._judge(pairs, f"CalMO lowers test ECE ({pairs.optimizer})", "ece", 1, 0.0, GAIN, paper)

    def _accuracy(self, pairs: Twins) -> Verdict:
        statement = f"CalMO does not lower test accuracy ({pairs.optimizer})"
        return self._judge(pairs, statement, "accuracy", -1, TOLERATED, 0.0, None)

    def _judge(
        self, pairs: Twins, statement: str, name: str, sign: int, shift: float, threshold: float, paper: float | None
    ) -> Verdict:
        estimand = "drop of test ECE" if name == "ece" else "gain of test accuracy, plus .01"
        shared = {"estimand": estimand, "window": WORDS["best"], "runs": 2 * len(pairs.pairs)}
        try:
            gains, shared["window"] = pairs.gains(name)
        except SettingError as error:
            return self.lacking(statement, str(error), **shared)
        contrast = mean([sign * gain + shift for gain in gains])
        if contrast is None:
            return self.lacking(statement, f"{len(pairs.pairs)} pairs: expected 3 or more", **shared)
        outcome, reason = decide_above(contrast, threshold)
        numbers = {"effect": contrast.value, "interval": contrast.interval(), "pvalue": contrast.pvalue()}
        return self.verdict(statement, outcome, reason, paper=paper, **numbers, **shared)
