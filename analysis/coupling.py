"""Are two series of a study coupled from run to run, beyond the shape that all training curves share?"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from analysis.lead_lag import Lag, lead_lag
from analysis.naive import describe
from analysis.panel import WITHIN, Data, DesignError, Panel, Source, Window, canonical, read_panel
from analysis.permutation import Association, associate
from analysis.plugins import SettingError
from analysis.pooling import holm
from analysis.results import Outcome, Result

ALPHA = 0.05
EFFECT = 0.2
"""Smallest |rho_seed| that counts as a coupling."""
EQUIVALENCE = 0.1
"""A whitened rho_seed whose 90% interval lies within this of 0 is none."""
MIN_SEEDS = 3
DESIGN = (4, 300)
"""Learning rates and recorded steps the protocol asks for; with fewer the tests keep their size but lose power."""

CONTROLS = (
    "loss",
    "mean_confidence",
    "gradient_norm",
    "weight_norm",
    "exp_moment",
    "exp_moment_predicted",
    "batch_sharpness",
)
"""Control series looked for in records; in a table all further numeric columns that are above 0 are."""


@dataclass(frozen=True)
class Control:
    """Whether one of the two series carries a signal of its own run, seen through a control series.

    Attributes:
        series: x or y, by name.
        control: the other series of the same runs that it is paired with.
        rho: level rho_seed of the two.
        pvalue: of their within-stratum permutation test.
        pvalue_holm: after Holm over the controls of this series.
    """

    series: str
    control: str
    rho: float
    pvalue: float
    pvalue_holm: float


@dataclass(frozen=True)
class CouplingResult(Result):
    """What the runs say of the coupling of x and y.

    Attributes:
        x: first series.
        y: second series.
        split: sample of the metrics.
        within: what makes a stratum.
        window: the steps asked for.
        runs: how many runs were used.
        strata: how many strata they make.
        steps: fewest and most steps of a run.
        outcome: supported, refuted or inconclusive.
        reason: of the outcome.
        smallest_pvalue: that this design can attain; None where there is no test.
        association: level and whitened rho_seed, and p; None where they cannot be computed.
        controls: tests of a run-specific signal; empty where the verdict did not depend on them.
        descriptive: correlations along each run, see `analysis.naive.describe`. Not evidence.
        lag: lead or lag, where asked for.
        notes: what was aligned, cut or left out.
    """

    x: str
    y: str
    split: str
    within: tuple[str, ...]
    window: Window
    runs: int
    strata: int
    steps: tuple[int, int]
    outcome: Outcome
    reason: str
    smallest_pvalue: float | None = None
    association: Association | None = None
    controls: tuple[Control, ...] = ()
    descriptive: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)
    lag: Lag | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """``"SUPPORTED"``, ``"REFUTED"`` or ``"INCONCLUSIVE"``."""
        return self.outcome.value

    @property
    def pvalue(self) -> float | None:
        """Of the within-stratum permutation test, two-sided; None where there is no test."""
        return self.association.pvalue if self.association else None

    @property
    def estimate(self) -> float | None:
        """Level rho_seed, in [-1, 1]."""
        return self.association.level.value if self.association else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% jackknife interval of the level rho_seed."""
        return self.association.level.interval() if self.association else None

    @property
    def own_seed_r(self) -> float | None:
        """Mean over runs of the correlation along a run of log x with its own log y. Descriptive."""
        return float(self.descriptive["r_log"].mean()) if len(self.descriptive) else None

    @property
    def other_seed_r(self) -> float | None:
        """The same with log y of the other runs of the stratum. Descriptive."""
        return float(self.descriptive["r_log_other"].mean()) if len(self.descriptive) else None

    def summary(self) -> str:
        """The verdict, its reason and the numbers behind it; single-run correlations apart, as descriptive."""
        lines = [
            f"coupling of {self.x} and {self.y} ({self.split}), {_window_text(self.window)}: {self.outcome}",
            f"  {self.reason}",
            f"  {self.runs} runs in {self.strata} strata by {', '.join(self.within)}; "
            f"{self.steps[0]} to {self.steps[1]} steps",
        ]
        if self.association:
            for name, rho in (("level", self.association.level), ("whitened", self.association.whitened)):
                low, high = rho.interval()
                lines.append(f"  rho_seed {name:8s} {rho.value:+.3f}  95% interval [{low:+.3f}, {high:+.3f}]")
            how = "all pairings" if self.association.exact else "drawn pairings"
            lines.append(
                f"  p = {self.association.pvalue:.4g} ({how} within strata, max of both forms; "
                f"smallest attainable {self.smallest_pvalue:.2g})"
            )
        if self.lag:
            low, high = self.lag.interval
            lines.append(
                f"  lag of {self.y} {self.lag.mean:+.2f} steps [{low:+.2f}, {high:+.2f}], p = {self.lag.pvalue:.3g}"
            )
        lines += [
            f"  control: {c.series} with {c.control}: rho {c.rho:+.3f}, Holm p = {c.pvalue_holm:.3g}"
            for c in self.controls
        ]
        if len(self.descriptive):
            table = self.descriptive
            lines += [
                "  descriptive only, no evidence of coupling:",
                f"    Pearson r {table['r'].mean():.2f} +- {table['r'].std():.2f}; of logarithms, with the own seed "
                f"{self.own_seed_r:.2f}, with other seeds {self.other_seed_r:.2f}",
                f"    naive p <= .05 in {_rate(table['p'])} of runs; of first differences in "
                f"{_rate(table['p_differences'])}; with the effective sample size in {_rate(table['p_effective'])}",
            ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def to_frame(self) -> pd.DataFrame:
        """One row per form of rho_seed, level and whitened; no row where they cannot be computed."""
        shared = {"x": self.x, "y": self.y, "split": self.split, "window": str(self.window), "verdict": self.verdict}
        rows = []
        if self.association:
            for form, rho in (("level", self.association.level), ("whitened", self.association.whitened)):
                low, high = rho.interval()
                numbers = {"rho": rho.value, "low": low, "high": high, "error": rho.error, "z": rho.z}
                rows.append({**shared, "form": form, **numbers, "pvalue": self.pvalue, "runs": self.runs})
        columns = [*shared, "form", "rho", "low", "high", "error", "z", "pvalue", "runs"]
        return pd.DataFrame(rows, columns=columns)


def couple(
    runs: Data,
    x: str = "ece",
    y: str = "lambda_max",
    split: str = "train",
    *,
    within: Sequence[str] = WITHIN,
    lags: int = 0,
    window: Window = "all",
    controls: Sequence[str] | None = None,
    seed: int = 0,
) -> CouplingResult:
    """Test whether the runs of a learning rate whose x is high are those whose y is high.

    Estimand: rho_seed of the logarithms, centred on the mean curve of their stratum, as they are (level) and
    quasi-differenced with one pooled AR(1) coefficient (whitened). Test: the pairing of runs permuted within
    strata, statistic the larger of both standardised forms. Interval: delete-one-run jackknife.

    * SUPPORTED: p <= .05, sign +, some abs(rho) >= .2.
    * REFUTED: p <= .05 with sign -. Or: the whitened 90% interval lies within +-.10, the lower end of the level's
      95% interval is below .2, and both x and y carry a signal of their own run, so that not finding one between
      them means something. A series carries one where the same permutation test pairs it with a *control*, a
      further series of the same runs, at p <= .05 after Holm over its controls.
    * INCONCLUSIVE otherwise, and where the design is too small: one stratum, fewer than 3 runs in a stratum, a
      smallest attainable p above .05, or a series that is constant.

    The sign is that of the standardised form which is larger.

    Args:
        runs: records, or a table with columns run, step, the series, and those of ``within`` (or ``stratum``).
        x: metric, recorded scalar or column.
        y: the same.
        split: sample of the metrics.
        within: settings that make a stratum.
        lags: recorded rows to search for a lead or lag on either side; 0 for none.
        window: ``"all"``, ``"before_peak"`` (of y), ``"interpolating"`` or a pair of steps; see
            `analysis.panel.read_panel`.
        controls: names of the control series; None for those of ``CONTROLS`` that were recorded, or all further
            positive columns of a table.
        seed: of drawn pairings, where they are too many to enumerate.

    Raises:
        SettingError: no such series, or a value that has no logarithm; names the run and the step.
    """
    if canonical(x) == canonical(y):
        raise SettingError(f"x = {x!r}, y = {y!r}: expected two different series")
    if lags < 0:
        raise SettingError(f"lags = {lags}: expected 0 or more")
    source = Source(runs, split, within)
    try:
        panel = read_panel(source, (x, y), window)
    except DesignError as error:
        strata = len(set(source.keys))
        return CouplingResult(
            x, y, split, tuple(within), window, len(source.ids), strata, (0, 0), Outcome.INCONCLUSIVE, str(error)
        )
    return couple_panel(source, panel, x, y, split, within, window, lags=lags, controls=controls, seed=seed)


def couple_panel(
    source: Source,
    panel: Panel,
    x: str,
    y: str,
    split: str,
    within: Sequence[str],
    window: Window,
    *,
    lags: int = 0,
    controls: Sequence[str] | None = None,
    seed: int = 0,
) -> CouplingResult:
    """`couple` on series that were read already."""
    notes = list(panel.notes)
    smallest = panel.grouping.smallest_pvalue
    association: Association | None = None
    tests: tuple[Control, ...] = ()
    outcome, reason = Outcome.INCONCLUSIVE, ""
    try:
        association = associate(panel.logs[x], panel.logs[y], panel.grouping, seed)
    except ValueError:
        reason = f"{x} or {y} is the same in all runs of each stratum: no run differs from another"
    if panel.strata < DESIGN[0] or panel.counts[0] < DESIGN[1]:
        notes.append(
            f"{panel.strata} strata and {panel.counts[0]} steps are below the {DESIGN[0]} learning rates and "
            f"{DESIGN[1]} recorded steps of the protocol's design: little power"
        )
    lag = _lag(panel, x, y, lags, notes) if lags and association else None
    problem = design_problem(panel)
    if association:
        outcome, reason, tests = (
            (Outcome.INCONCLUSIVE, problem, tests)
            if problem
            else _judge(source, panel, (x, y), association, controls, seed)
        )
    return CouplingResult(
        x,
        y,
        split,
        tuple(within),
        window,
        len(panel.ids),
        panel.strata,
        panel.counts,
        outcome,
        reason,
        smallest,
        association,
        tests,
        describe(panel, x, y),
        lag,
        tuple(notes),
    )


def design_problem(panel: Panel) -> str:
    """Why no verdict can come of this design; empty where one can."""
    smallest = panel.grouping.smallest_pvalue
    attainable = f"the smallest attainable p is {smallest:.3g}"
    if panel.strata < 2:
        return f"one stratum only ({attainable}): expected several learning rates, 4 or more by the protocol"
    for rows in panel.grouping.members:
        if len(rows) < MIN_SEEDS:
            key = ", ".join(map(str, panel.keys[rows[0]]))
            return f"stratum ({key}) has {len(rows)} runs ({attainable}): expected {MIN_SEEDS} or more seeds in each"
    return f"{attainable}, above {ALPHA}: expected more seeds or learning rates" if smallest > ALPHA else ""


def _judge(
    source: Source,
    panel: Panel,
    names: tuple[str, str],
    found: Association,
    controls: Sequence[str] | None,
    seed: int,
) -> tuple[Outcome, str, tuple[Control, ...]]:
    if found.pvalue <= ALPHA:
        if found.leading.z < 0:
            return Outcome.REFUTED, f"p = {found.pvalue:.3g} with sign -: coupled the wrong way", ()
        if found.largest >= EFFECT:
            return Outcome.SUPPORTED, f"p = {found.pvalue:.3g}, sign +, |rho| = {found.largest:.2f} >= {EFFECT}", ()
        return Outcome.INCONCLUSIVE, f"p = {found.pvalue:.3g}, but |rho| = {found.largest:.2f} < {EFFECT}", ()
    low, high = found.whitened.interval(0.9)
    nothing = f"p = {found.pvalue:.3g} > {ALPHA}"
    if not (low >= -EQUIVALENCE and high <= EQUIVALENCE):
        return (
            Outcome.INCONCLUSIVE,
            f"{nothing}, and the whitened 90% interval [{low:.2f}, {high:.2f}] is not within +-{EQUIVALENCE}: "
            "more seeds or steps would tell",
            (),
        )
    if found.level.interval()[0] >= EFFECT:
        return Outcome.INCONCLUSIVE, f"{nothing}, but the level rho's 95% lower limit is {EFFECT} or more", ()
    tests = tuple(test for name in names for test in _control_tests(source, panel, name, names, controls, seed))
    silent = [n for n in names if not any(t.series == n and t.pvalue_holm <= ALPHA for t in tests)]
    if silent:
        return (
            Outcome.INCONCLUSIVE,
            f"{nothing}, and no control series shows a run-specific signal of {' or of '.join(silent)}: "
            "runs that do not differ cannot show a coupling",
            tests,
        )
    return (
        Outcome.REFUTED,
        f"{nothing}, the whitened 90% interval [{low:.2f}, {high:.2f}] is within +-{EQUIVALENCE}, and both series "
        "show run-specific signals against control series",
        tests,
    )


def _control_tests(
    source: Source, panel: Panel, name: str, names: tuple[str, str], controls: Sequence[str] | None, seed: int
) -> list[Control]:
    chosen = source.others(names, CONTROLS) if controls is None else list(controls)
    found = []
    for control in chosen:
        logs = panel.further(source, control)
        if logs is None:
            continue
        try:
            association = associate(panel.logs[name], logs, panel.grouping, seed)
        except ValueError:
            continue
        found.append((control, association))
    adjusted = holm([association.pvalue for _, association in found])
    return [
        Control(name, control, association.level.value, association.pvalue, pvalue)
        for (control, association), pvalue in zip(found, adjusted, strict=True)
    ]


def _lag(panel: Panel, x: str, y: str, lags: int, notes: list[str]) -> Lag | None:
    try:
        return lead_lag(panel, x, y, lags)
    except DesignError as error:
        notes.append(str(error))
        return None


def _window_text(window: Window) -> str:
    texts = {"all": "all steps", "before_peak": "before the peak", "interpolating": "interpolating steps"}
    return texts[window] if isinstance(window, str) else f"steps {window[0]} to {window[1]}"


def _rate(pvalues: "pd.Series[float]") -> str:
    return f"{(pvalues <= ALPHA).mean():.0%}"
