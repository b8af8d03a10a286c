"""Does one quantity explain the coupling of two series, or does a rival explain it better?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.coupling import ALPHA, EFFECT, EQUIVALENCE, CouplingResult, couple_panel
from analysis.panel import WITHIN, Data, DesignError, Panel, Source, Window, canonical, read_panel
from analysis.permutation import MAX_EXACT, Association, associate
from analysis.plugins import SettingError
from analysis.pooling import holm
from analysis.results import Outcome, Result
from analysis.spline import held_out_errors, residuals, restricted_cubic

Array = NDArray[np.float64]

RIVALS = ("loss", "mean_confidence", "gradient_norm", "exp_moment_predicted")
"""Rivals looked for by default; those that were recorded are compared."""


@dataclass(frozen=True)
class Rival:
    """A rival against the mediator, by the error of predicting log x and log y of a run from the other runs.

    Attributes:
        name: the rival.
        gain_x: mean over runs of the mediator's less the rival's mean squared error of log x; positive where the
            rival predicts better.
        gain_y: the same of log y.
        pvalue_x: of gain_x <= 0, one-sided sign-flip test over runs.
        pvalue_y: of gain_y <= 0.
        pvalue_holm: of the rival not being better on both: the larger of the two, after Holm over rivals.
    """

    name: str
    gain_x: float
    gain_y: float
    pvalue_x: float
    pvalue_y: float
    pvalue_holm: float

    @property
    def wins(self) -> bool:
        """Whether the rival predicts both better than the mediator does."""
        return self.pvalue_holm <= ALPHA and min(self.gain_x, self.gain_y) > 0


@dataclass(frozen=True)
class MediationResult(Result):
    """What the runs say of a mediator of the coupling of x and y.

    Attributes:
        mediator: its name.
        coupling: of x and y on the same steps; where it is not SUPPORTED nothing further is computed.
        outcome: supported (the mediator explains the coupling completely), refuted or inconclusive.
        reason: of the outcome.
        residual: association of what a spline of the log mediator leaves of log x and log y; None where the gate
            is shut.
        rivals: compared with the mediator.
    """

    mediator: str
    coupling: CouplingResult
    outcome: Outcome
    reason: str
    residual: Association | None = None
    rivals: tuple[Rival, ...] = ()

    @property
    def verdict(self) -> str:
        """``"SUPPORTED"``, ``"REFUTED"`` or ``"INCONCLUSIVE"``."""
        return self.outcome.value

    @property
    def pvalue(self) -> float | None:
        """Of the permutation test on the residuals; None where the gate is shut."""
        return self.residual.pvalue if self.residual else None

    @property
    def estimate(self) -> float | None:
        """Whitened rho_seed of the residuals."""
        return self.residual.whitened.value if self.residual else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 90% jackknife interval, which the verdict compares with +-.10."""
        return self.residual.whitened.interval(0.9) if self.residual else None

    def summary(self) -> str:
        """The verdict, its reason, the residual association and the rivals."""
        c = self.coupling
        lines = [
            f"mediation of {c.x} and {c.y} by {self.mediator} ({c.split}): {self.outcome}",
            f"  {self.reason}",
            f"  gate: coupling {c.outcome}, {c.runs} runs in {c.strata} strata, {c.steps[0]} to {c.steps[1]} steps",
        ]
        if self.residual and self.interval:
            lines.append(
                f"  residual rho_seed level {self.residual.level.value:+.3f}, whitened {self.estimate:+.3f}, "
                f"90% interval [{self.interval[0]:+.3f}, {self.interval[1]:+.3f}], p = {self.residual.pvalue:.4g}"
            )
        lines += [
            f"  rival {r.name}: {c.x} {r.gain_x:+.2g} (p = {r.pvalue_x:.3g}), {c.y} {r.gain_y:+.2g} "
            f"(p = {r.pvalue_y:.3g}){'; better on both' if r.wins else ''}"
            for r in self.rivals
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in c.notes)])

    def to_frame(self) -> pd.DataFrame:
        """One row for the residual association, one for each rival; none where the gate is shut."""
        rows: list[dict[str, object]] = []
        if self.residual and self.interval:
            low, high = self.interval
            numbers = {"estimate": self.estimate, "low": low, "high": high, "pvalue": self.pvalue}
            rows.append({"test": "residual", "name": self.mediator, **numbers, "verdict": self.verdict})
        for rival in self.rivals:
            numbers = {"gain_x": rival.gain_x, "gain_y": rival.gain_y, "pvalue": rival.pvalue_holm}
            rows.append({"test": "rival", "name": rival.name, **numbers, "verdict": self.verdict})
        columns = ["test", "name", "estimate", "low", "high", "gain_x", "gain_y", "pvalue", "verdict"]
        return pd.DataFrame(rows, columns=columns)


def mediate(
    runs: Data,
    mediator: str = "exp_moment",
    rivals: Sequence[str] | None = None,
    x: str = "ece",
    y: str = "lambda_max",
    split: str = "train",
    *,
    within: Sequence[str] = WITHIN,
    window: Window = "all",
    controls: Sequence[str] | None = None,
    seed: int = 0,
) -> MediationResult:
    """Test whether a mediator explains the coupling of x and y completely. Asked only where `couple` says SUPPORTED.

    log x and log y are freed of a restricted cubic spline (5 knots) of the log mediator, in each stratum, and the
    coupling test is repeated on what is left.

    * REFUTED: residual p <= .05 and some abs(rho) >= .2; or a rival predicts both log x and log y of a left-out run
      better, from the other runs of its stratum (sign-flip tests over runs, Holm over rivals).
    * SUPPORTED: the whitened residual rho's 90% interval lies within +-.10, and p > .05. The level rho cannot carry
      this: noise that lives as long as training makes its interval wider than that.
    * INCONCLUSIVE otherwise.

    All series must come from the same samples at the same steps: measurement error of the mediator alone, of
    reliability .999, already leaves a residual coupling that refutes.

    Args:
        runs: records or a table, as for `couple`.
        mediator: metric, recorded scalar or column; ``"Q"`` is exp_moment.
        rivals: the same; None for those of ``RIVALS`` that were recorded.
        x: first series.
        y: second series.
        split: sample of the metrics.
        within: settings that make a stratum.
        window: as for `couple`.
        controls: as for `couple`.
        seed: of drawn pairings, where they are too many to enumerate.

    Raises:
        SettingError: no such series, or a value that has no logarithm; names the run and the step.
    """
    source = Source(runs, split, within)
    if rivals is None:
        rivals = [name for name in RIVALS if source.has(name)]
    rivals = [name for name in rivals if canonical(name) != canonical(mediator)]
    names = [x, y, mediator, *rivals]
    if len({canonical(name) for name in names}) < len(names):
        raise SettingError(f"x, y, mediator, rivals = {', '.join(names)}: expected different series")
    try:
        panel = read_panel(source, names, window)
    except DesignError as error:
        strata = len(set(source.keys))
        gate = CouplingResult(
            x, y, split, tuple(within), window, len(source.ids), strata, (0, 0), Outcome.INCONCLUSIVE, str(error)
        )
        return MediationResult(mediator, gate, Outcome.INCONCLUSIVE, str(error))
    gate = couple_panel(source, panel, x, y, split, within, window, controls=controls, seed=seed)
    if gate.outcome is not Outcome.SUPPORTED:
        reason = f"there is no supported coupling to explain (coupling {gate.outcome}: {gate.reason})"
        return MediationResult(mediator, gate, Outcome.INCONCLUSIVE, reason)
    return _explain(panel, gate, mediator, rivals, seed)


def _explain(panel: Panel, gate: CouplingResult, mediator: str, rivals: Sequence[str], seed: int) -> MediationResult:
    left = {name: np.zeros_like(panel.logs[name]) for name in (gate.x, gate.y)}
    errors = {(m, name): np.empty(len(panel.ids)) for m in (mediator, *rivals) for name in left}
    for rows in panel.grouping.members:
        inside = panel.grouping.valid[rows[0]]
        block = np.ix_(rows, inside)
        for m in (mediator, *rivals):
            basis = restricted_cubic(panel.logs[m][block])
            for name in left:
                values = panel.logs[name][block]
                errors[m, name][rows] = held_out_errors(basis, values)
                if m == mediator:
                    left[name][block] = residuals(basis, values)
    compared = _compare(errors, mediator, rivals, gate.x, gate.y, seed)
    try:
        residual = associate(left[gate.x], left[gate.y], panel.grouping, seed)
    except ValueError:
        reason = f"{gate.x} or {gate.y} is a function of {mediator}: nothing is left to test"
        return MediationResult(mediator, gate, Outcome.INCONCLUSIVE, reason, None, compared)
    outcome, reason = _judge(residual, compared, mediator)
    return MediationResult(mediator, gate, outcome, reason, residual, compared)


def _judge(residual: Association, rivals: Sequence[Rival], mediator: str) -> tuple[Outcome, str]:
    p, largest = residual.pvalue, residual.largest
    if p <= ALPHA and largest >= EFFECT:
        return Outcome.REFUTED, f"given {mediator} the coupling is not gone: p = {p:.3g}, |rho| = {largest:.2f}"
    better = [rival.name for rival in rivals if rival.wins]
    if better:
        return Outcome.REFUTED, f"{', '.join(better)} predicts both series of a left-out run better than {mediator}"
    low, high = residual.whitened.interval(0.9)
    inside = low >= -EQUIVALENCE and high <= EQUIVALENCE
    interval = f"whitened residual 90% interval [{low:.2f}, {high:.2f}]"
    if p > ALPHA and inside:
        return Outcome.SUPPORTED, f"given {mediator} nothing is left: p = {p:.3g}, {interval} within +-{EQUIVALENCE}"
    where = "within" if inside else "not within"
    return (
        Outcome.INCONCLUSIVE,
        f"p = {p:.3g}, |rho| = {largest:.2f}, {interval} {where} +-{EQUIVALENCE}: more seeds or steps would tell",
    )


def _compare(
    errors: dict[tuple[str, str], Array], mediator: str, rivals: Sequence[str], x: str, y: str, seed: int
) -> tuple[Rival, ...]:
    gains = [[errors[mediator, series] - errors[name, series] for series in (x, y)] for name in rivals]
    pvalues = [[sign_flip(gain, seed) for gain in pair] for pair in gains]
    adjusted = holm([max(pair) for pair in pvalues])
    return tuple(
        Rival(name, float(gain[0].mean()), float(gain[1].mean()), p[0], p[1], both)
        for name, gain, p, both in zip(rivals, gains, pvalues, adjusted, strict=True)
    )


def sign_flip(values: Array, seed: int = 0) -> float:
    """One-sided p-value of a mean above 0, by flipping signs: all of them up to 13 values, else 10,000 draws."""
    n = len(values)
    exact = 2**n <= MAX_EXACT
    if exact:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    else:
        signs = np.random.default_rng(seed).choice(np.array([-1, 1]), size=(MAX_EXACT, n))
    total = float(values.sum())
    reached = int(np.sum(signs @ values >= total - 1e-9 * float(np.abs(values).sum())))
    return reached / len(signs) if exact else (1 + reached) / (1 + len(signs))
