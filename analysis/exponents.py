"""Exponents of the shared bound: slopes of log ECE and log sharpness on log Q, run by run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analysis.coupling import ALPHA
from analysis.panel import WITHIN, Data, DesignError, Source, Window, read_panel
from analysis.results import Outcome, Result

MARGIN = 0.2
"""Exponents that differ by less than this are taken as equal."""
MIN_RUNS = 3


@dataclass(frozen=True)
class Slope:
    """A mean over runs against a value it is claimed to have.

    Attributes:
        name: what it is, for example ``"alpha of ece"``.
        claimed: the value.
        mean: over runs.
        interval: 95% t interval over runs.
        interval_90: the 90% interval that two one-sided tests at .05 compare with the margin.
        pvalue: of mean = claimed, two-sided t.
        outcome: supported where the 90% interval lies within the margin of the claimed value; refuted where
            p <= .05 and the mean is off by the margin or more; else inconclusive.
    """

    name: str
    claimed: float
    mean: float
    interval: tuple[float, float]
    interval_90: tuple[float, float]
    pvalue: float
    outcome: Outcome


@dataclass(frozen=True)
class ExponentResult(Result):
    """Exponents of x and y in the mediator, and whether they are shared.

    Attributes:
        x: first series.
        y: second series.
        mediator: the power of which they are claimed to follow.
        window: steps asked for.
        slopes: alpha of x (claimed 1), alpha of y (claimed 1), and their difference (claimed 0); empty where the
            runs cannot tell.
        per_run: one row per run: run, alpha_x, alpha_y.
        reason: of the outcome.
        notes: what was aligned, cut or left out.
    """

    x: str
    y: str
    mediator: str
    window: Window
    slopes: tuple[Slope, ...]
    per_run: pd.DataFrame
    reason: str
    notes: tuple[str, ...] = ()

    @property
    def shared(self) -> Slope | None:
        """The difference of both exponents."""
        return self.slopes[2] if self.slopes else None

    @property
    def verdict(self) -> str:
        """Whether the exponent is shared: ``"SUPPORTED"``, ``"REFUTED"`` or ``"INCONCLUSIVE"``."""
        return (self.shared.outcome if self.shared else Outcome.INCONCLUSIVE).value

    @property
    def pvalue(self) -> float | None:
        """Of equal exponents, two-sided t over runs."""
        return self.shared.pvalue if self.shared else None

    @property
    def estimate(self) -> float | None:
        """Mean of alpha_x - alpha_y."""
        return self.shared.mean if self.shared else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% t interval of the difference."""
        return self.shared.interval if self.shared else None

    def summary(self) -> str:
        """The verdict, its reason and the exponents."""
        lines = [f"shared exponent of {self.x} and {self.y} in {self.mediator}: {self.verdict}", f"  {self.reason}"]
        lines += [
            f"  {s.name} {s.mean:+.3f} 95% interval [{s.interval[0]:+.3f}, {s.interval[1]:+.3f}], against "
            f"{s.claimed:g}: p = {s.pvalue:.3g}, {s.outcome}"
            for s in self.slopes
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def to_frame(self) -> pd.DataFrame:
        """One row per exponent, and one for their difference."""
        columns = ["name", "claimed", "mean", "low", "high", "pvalue", "outcome"]
        rows = [(s.name, s.claimed, s.mean, *s.interval, s.pvalue, s.outcome.value) for s in self.slopes]
        return pd.DataFrame(rows, columns=columns)


def exponents(
    runs: Data,
    x: str = "ece",
    y: str = "lambda_max",
    mediator: str = "exp_moment",
    split: str = "train",
    *,
    within: Sequence[str] = WITHIN,
    window: Window = "all",
) -> ExponentResult:
    """Slopes of log x and log y on log mediator along each run, then t over runs.

    The run is the unit: errors along a run are so long that a regression over all its steps, with independent or
    with autocorrelation-robust errors, rejects a true exponent in 18 to 72% of studies.

    Args:
        runs: records or a table, as for `analysis.coupling.couple`.
        x: first series.
        y: second series.
        mediator: what they are claimed to be powers of.
        split: sample of the metrics.
        within: settings that make a stratum; the steps of a stratum's runs are aligned.
        window: as for `couple`.

    Raises:
        SettingError: no such series, or a value that has no logarithm; names the run and the step.
    """
    source = Source(runs, split, within)
    nothing = pd.DataFrame(columns=["run", "alpha_x", "alpha_y"])
    try:
        panel = read_panel(source, (x, y, mediator), window)
    except DesignError as error:
        return ExponentResult(x, y, mediator, window, (), nothing, str(error))
    if len(panel.ids) < MIN_RUNS:
        reason = f"{len(panel.ids)} runs: expected {MIN_RUNS} or more"
        return ExponentResult(x, y, mediator, window, (), nothing, reason, panel.notes)
    rows = []
    for row, run in enumerate(panel.ids):
        inside = panel.grouping.valid[row]
        q = panel.logs[mediator][row, inside]
        q = q - q.mean()
        rows.append((run, *(float(q @ panel.logs[name][row, inside] / (q @ q)) for name in (x, y))))
    per_run = pd.DataFrame(rows, columns=["run", "alpha_x", "alpha_y"])
    of_x, of_y = per_run["alpha_x"].to_numpy(), per_run["alpha_y"].to_numpy()
    slopes = (
        over_runs(f"alpha of {x}", of_x, 1.0),
        over_runs(f"alpha of {y}", of_y, 1.0),
        over_runs("difference", of_x - of_y, 0.0),
    )
    low, high = slopes[2].interval_90
    reason = (
        f"mean difference {slopes[2].mean:+.2f}, p = {slopes[2].pvalue:.3g}, 90% interval [{low:.2f}, {high:.2f}] "
        f"against a margin of {MARGIN}"
    )
    return ExponentResult(x, y, mediator, window, slopes, per_run, reason, panel.notes)


def over_runs(name: str, values: NDArray[np.float64], claimed: float) -> Slope:
    """The mean of one value per run against what is claimed of it."""
    runs = len(values)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / np.sqrt(runs)
    low_90, high_90 = _interval(mean, error, runs, 0.9)
    if error > 0:
        pvalue = float(2 * stats.t.sf(abs(mean - claimed) / error, runs - 1))
    else:
        pvalue = 1.0 if mean == claimed else 0.0
    outcome = Outcome.INCONCLUSIVE
    if claimed - MARGIN < low_90 and high_90 < claimed + MARGIN:
        outcome = Outcome.SUPPORTED
    elif pvalue <= ALPHA and abs(mean - claimed) >= MARGIN:
        outcome = Outcome.REFUTED
    return Slope(name, claimed, mean, _interval(mean, error, runs, 0.95), (low_90, high_90), pvalue, outcome)


def _interval(mean: float, error: float, runs: int, confidence: float) -> tuple[float, float]:
    half = float(stats.t.ppf((1 + confidence) / 2, runs - 1)) * error
    return mean - half, mean + half
