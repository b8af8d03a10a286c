"""C5: Muon has the largest train margins and a train ECE near zero, yet fragile margins and overconfidence on test."""

from collections.abc import Sequence
from typing import ClassVar

from analysis.claims import Claim
from analysis.claims._contrasts import Mean, decide_above, difference, mean
from analysis.claims._regularised import Twins, twins
from analysis.claims._studies import FINAL, Study, by_rate, final, studies
from analysis.claims.c4_calmo import Calmo
from analysis.plugins import SettingError
from analysis.results import Outcome, Verdict
from analysis.run import Run
from analysis.selection import WORDS

WINDOW = "last tenth of the recorded steps"
MARGIN = 0.5
NEAR_ZERO = 0.01
OVERCONFIDENT = 0.01
COLLAPSED = 0.5
"""Share of the mean margin that a perturbation takes away."""
GAIN = 0.005


class Muon(Claim):
    """Muon against each other optimizer of the same data and model.

    Estimands: mean train margin of Muon less another optimizer's (logits), learning rates equal; .01 less Muon's train
    ECE; Muon's mean test confidence less its accuracy; the drop of test ECE that CalMO brings Muon less the drop it
    brings another; the share of Muon's mean train margin that the attack which lowers it most takes away, less .5. That
    margin is an upper estimate of the worst case, so more may be lost. Tests: t with variances within learning rates; t
    over runs; Welch's t over pairs of runs. Unit: the run, or the pair. Window: the last tenth of the recorded steps;
    CalMO's as in C4. Thresholds: .5 logits, 0, .01, .005, 0. Falsifier: the other sign at p <= .05, or a 95% interval
    below the threshold. Holm over all parts.
    """

    title: ClassVar[str] = "C5"
    command: ClassVar[str] = "margintail reproduce table2 --scale smoke"

    def judge(self, runs: Sequence[Run]) -> list[Verdict]:
        """See `Claim.judge`."""
        found = studies(runs)
        muons = [study for study in found if study.optimizer == "muon"]
        if not muons:
            return [self.lacking("Muon has the largest train margins", "no runs of muon with cross-entropy")]
        verdicts: list[Verdict] = []
        for muon in muons:
            others = [s for s in found if s.optimizer != "muon" and s.context == muon.context]
            verdicts += [self._margins(muon, other) for other in others]
            verdicts.append(self._calibrated(muon))
            verdicts.append(self._overconfident(muon))
            verdicts.append(self._fragile(muon))
        return verdicts + self._gains(twins(runs))

    def _margins(self, muon: Study, other: Study) -> Verdict:
        statement = f"{muon.label} has larger train margins than {other.label}"
        shared: dict[str, object] = {"estimand": "difference of mean train margin (logits)", "window": WINDOW}
        shared["runs"] = len(muon.runs) + len(other.runs)
        try:
            groups = [by_rate(s, [final(run, "mean_margin") for run in s.runs]) for s in (muon, other)]
        except SettingError as error:
            return self.lacking(statement, str(error), **shared)
        return self._decided(statement, difference(*groups), MARGIN, shared)

    def _calibrated(self, muon: Study) -> Verdict:
        shared = {"estimand": ".01 less train ECE", "window": WINDOW, "runs": len(muon.runs)}
        statement = f"train ECE is near zero, below .01 ({muon.label})"
        try:
            values = [NEAR_ZERO - final(run, "ece") for run in muon.runs]
        except SettingError as error:
            return self.lacking(statement, str(error), **shared)
        return self._decided(statement, mean(values), 0.0, shared)

    def _overconfident(self, muon: Study) -> Verdict:
        shared = {"estimand": "mean test confidence less test accuracy", "window": WINDOW, "runs": len(muon.runs)}
        statement = f"test predictions are overconfident ({muon.label})"
        try:
            values = [final(run, "mean_confidence", "test") - final(run, "accuracy", "test") for run in muon.runs]
        except SettingError as error:
            return self.lacking(statement, str(error), **shared)
        return self._decided(statement, mean(values), OVERCONFIDENT, shared)

    def _fragile(self, muon: Study) -> Verdict:
        shared = {"estimand": "share of the mean train margin lost, less .5", "window": WINDOW, "runs": len(muon.runs)}
        statement = f"margins collapse under perturbation ({muon.label})"
        try:
            values = [_share_lost(run) - COLLAPSED for run in muon.runs]
        except SettingError as error:
            return self.lacking(statement, str(error), **shared)
        return self._decided(statement, mean(values), 0.0, shared)

    def _gains(self, found: list[Twins]) -> list[Verdict]:
        muon = next((pairs for pairs in found if pairs.optimizer == "muon"), None)
        others = [pairs for pairs in found if pairs.optimizer != "muon"]
        if muon is None or not others:
            reason = f"no pairs of runs with and without CalMO to compare; to make such runs: {Calmo.command}"
            return [self.verdict("Muon gains most from CalMO", Outcome.INCONCLUSIVE, reason)]
        verdicts = []
        for other in others:
            statement = f"CalMO lowers test ECE more for muon than for {other.optimizer}"
            shared: dict[str, object] = {"estimand": "difference of drops of test ECE", "window": WORDS["best"]}
            shared["runs"] = 2 * (len(muon.pairs) + len(other.pairs))
            try:
                (mine, shared["window"]), (theirs, _) = muon.gains("ece"), other.gains("ece")
            except SettingError as error:
                verdicts.append(self.lacking(statement, str(error), **shared))
                continue
            verdicts.append(self._decided(statement, difference({0.0: mine}, {0.0: theirs}), GAIN, shared))
        return verdicts

    def _decided(self, statement: str, found: Mean | None, threshold: float, shared: dict[str, object]) -> Verdict:
        if found is None:
            return self.verdict(statement, Outcome.INCONCLUSIVE, "too few runs: expected more seeds", **shared)
        outcome, reason = decide_above(found, threshold)
        numbers = {"effect": found.value, "interval": found.interval(), "pvalue": found.pvalue()}
        return self.verdict(statement, outcome, reason, **numbers, **shared)


def _share_lost(run: Run) -> float:
    """Share of the mean clean margin that the worst attack takes away, over the last tenth of the steps with both."""
    stream = "robust_train"
    names = [name for name in run.columns(stream) if name.startswith("margin_")]
    if not names:
        raise SettingError(f"run {run.id}: its stream {stream} has no margin under perturbation")
    clean = run.metric("mean_margin", "train")
    # The two streams have cadences of their own.
    clean = clean.loc[clean.index.isin(run.steps(stream))]
    if not len(clean):
        raise SettingError(f"run {run.id}: its streams {stream} and examples_train have no step in common")
    clean = clean.iloc[-max(1, round(FINAL * len(clean))) :]
    if clean.mean() <= 0:
        raise SettingError(f"run {run.id}: no positive mean margin at the steps of its stream {stream}")
    steps = clean.index.to_numpy()
    return 1 - min(float(run.rows(stream, name, steps).mean()) for name in names) / float(clean.mean())
