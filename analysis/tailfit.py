"""The fit of the shared exponential margin-tail bound: do ECE and sharpness follow Q, with which exponent and constant.

The paper bounds both by a constant times Q. Taken as a law, that is log y = a + log Q. Here it stands against laws with
other exponents, with the measured C_J, with sharpness held at the edge of stability, and with rivals in place of Q;
what decides is the error on runs that the fit has not seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from analysis.exponents import ExponentResult, exponents
from analysis.margin_tail import moment_share, tail_rate
from analysis.margins import exp_moment
from analysis.panel import WITHIN, Array, Data, DesignError, Panel, Source, Window, read_panel
from analysis.plugins import SettingError
from analysis.results import Result
from analysis.run import Run

RIVALS = ("exp_moment_predicted", "mean_one_minus_p_true", "loss", "mean_confidence", "gradient_norm")
NORM = "jacobian_norm"
"""The series C_J = max_i |J_i|; of a record from its stream ``jacobian``, of a table this column."""
ROBUST = "exp_moment_robust_"
"""Before a radius: the moment of a record's PGD margins margin_<radius>, a lower estimate of Q_eps."""
QUANTILES = (0.5, 0.9, 0.99)
_POINTS = 50
"""Steps per run in the fit of the saturating law, whose neighbours say the same."""

Logs = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class _RunLogs:
    run: str
    group: str
    log_lr: float | None
    logs: Logs


Law = Callable[[Logs, float | None], NDArray[np.float64]]
Fit = Callable[[Sequence[_RunLogs]], Law]


@dataclass(frozen=True)
class BoundFit(Result):
    """How ECE and sharpness follow the exponential margin moment.

    Attributes:
        exponents: slopes of both on log Q, run by run, and the verdicts of alpha = 1 and of a shared exponent.
        models: one row per target and law: target, model, loro (root mean square log error on a run left out, mean over
            runs), looo (the same with one optimizer left out; NaN with one only), runs. Sorted by target and loro.
        envelope: one row per target and quantile: log_constant (that quantile of log(target/Q) over all runs and steps)
            and coverage (share of a left-out run's steps that lie below the constant of the others; mean over runs).
        tails: one row per run, medians over its steps: rate of the lower tail of margins, share_1 and share_10 (part of
            Q from the lowest 1% and 10% of margins). Empty for a table.
        notes: laws left out, and why.
    """

    exponents: ExponentResult
    models: pd.DataFrame
    envelope: pd.DataFrame
    tails: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Whether the exponent is shared: ``"SUPPORTED"``, ``"REFUTED"`` or ``"INCONCLUSIVE"``."""
        return self.exponents.verdict

    @property
    def pvalue(self) -> float | None:
        """Of equal exponents, two-sided t over runs."""
        return self.exponents.pvalue

    @property
    def estimate(self) -> float | None:
        """Mean of alpha of x minus alpha of y."""
        return self.exponents.estimate

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% t interval of the difference."""
        return self.exponents.interval

    def best(self, target: str) -> str:
        """The law with the least error on a run left out.

        Raises:
            SettingError: no such target was fitted.
        """
        rows = self.models[self.models["target"] == target]
        if rows.empty:
            known = ", ".join(self.models["target"].unique()) or "nothing"
            raise SettingError(f"target {target!r}: fitted were {known}")
        return str(rows["model"].iloc[0])

    def summary(self) -> str:
        """The exponents, the best law of each target beside the paper's, and the tail."""
        lines = [self.exponents.summary()]
        for target, rows in self.models.groupby("target", sort=False):
            paper = rows.loc[rows["model"] == "paper", "loro"].iloc[0]
            lines.append(
                f"{target}: least error on a run left out {rows['loro'].iloc[0]:.3f} by {rows['model'].iloc[0]}; the "
                f"paper's law {paper:.3f} (root mean square, log scale)"
            )
        if len(self.tails):
            median = self.tails[["rate", "share_1", "share_10"]].median()
            lines.append(
                f"lower tail of margins: rate {median['rate']:.2f} per logit; {median['share_1']:.0%} of Q from the "
                f"lowest 1% of margins, {median['share_10']:.0%} from the lowest 10% (medians)"
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def to_frame(self) -> pd.DataFrame:
        """The laws and their errors."""
        return self.models.copy()


def fit_bound(
    runs: Data,
    x: str = "ece",
    y: str = "lambda_max",
    mediator: str = "exp_moment",
    split: str = "train",
    *,
    within: Sequence[str] = WITHIN,
    window: Window = "all",
    rivals: Sequence[str] = RIVALS,
) -> BoundFit:
    """Fit the shared bound and the laws that compete with it.

    Laws of log x and log y: ``paper`` a + log Q; ``shared`` a + alpha log Q with one alpha for both; ``separate``
    with one alpha each; and in place of Q each rival, as ``rival: name``. Of log y also ``normalised``
    a + log 2 C_J^2 + log Q and ``saturating`` min(b + log Q, c + d log lr). A slope is the mean of the slopes of the
    runs, a constant the mean over runs, so that a long run counts as much as a short one.

    Args:
        runs: records, or a table with columns run, step, x, y and the mediator, as for `analysis.coupling.couple`.
        x: first series.
        y: second series.
        mediator: Q.
        split: sample of the metrics.
        within: settings that make a stratum; the steps of a stratum's runs are aligned.
        window: as for `couple`.
        rivals: series to try in place of Q; those that are not there are left out, and a note says so.

    Raises:
        SettingError: no such series, or a value that has no logarithm; names the run and the step.
    """
    # Read more than once.
    data = runs if isinstance(runs, pd.DataFrame) else list(runs)
    found = exponents(data, x, y, mediator, split, within=within, window=window)
    tails = pd.DataFrame() if isinstance(data, pd.DataFrame) else margin_tails(data, split)
    source = _Records(data, split, within)
    try:
        panel = read_panel(source, (x, y, mediator), window)
    except DesignError as error:
        return BoundFit(found, _frame([]), _envelope([], (x, y), mediator), tails, (str(error),))
    notes: list[str] = []
    rivals = (*rivals, *_robust_moments(data, split))
    further = _further(panel, source, (NORM, *rivals), notes)
    # A table may have only some of the settings.
    names = [name for name in within if not isinstance(data, pd.DataFrame) or name in data.columns]
    runs_logs = _by_run(panel, further, names)
    laws = _laws(x, y, mediator, [name for name in rivals if name in further], NORM in further, runs_logs, notes)
    rows = [
        (target, name, _left_out(fit, target, runs_logs, "run"), _left_out(fit, target, runs_logs, "group"))
        for target, name, fit in laws
    ]
    models = _frame([(*row, len(runs_logs)) for row in rows])
    return BoundFit(found, models, _envelope(runs_logs, (x, y), mediator), tails, tuple(notes))


def margin_tails(runs: Sequence[Run], split: str = "train") -> pd.DataFrame:
    """Medians over the steps of each run: rate, share_1 and share_10; runs without examples are left out."""
    rows = []
    for run in runs:
        if f"examples_{split}" not in run.streams or "margin" not in run.columns(f"examples_{split}"):
            continue
        margin = run.column(f"examples_{split}", "margin").astype(np.float64)
        if 0.1 * margin.shape[-1] <= 1:
            continue
        medians = [np.median(tail_rate(margin)), *(np.median(moment_share(margin, part)) for part in (0.01, 0.1))]
        rows.append((run.id, run.setting("optimizer.name"), *map(float, medians)))
    return pd.DataFrame(rows, columns=["run", "optimizer", "rate", "share_1", "share_10"])


class _Records(Source):
    """A source that also knows C_J, from the stream jacobian, and the moments of robust margins."""

    def series(self, index: int, name: str) -> tuple[Array, Array]:
        if name == NORM and self._runs is not None:
            run = self._runs[index]
            return run.steps("jacobian"), run.column("jacobian", "norm").astype(np.float64).max(axis=1)
        if name.startswith(ROBUST) and self._runs is not None:
            run, stream = self._runs[index], f"robust_{self.split}"
            return run.steps(stream), exp_moment(run.column(stream, f"margin_{name.removeprefix(ROBUST)}_upper"))
        return super().series(index, name)


def _robust_moments(data: Data, split: str) -> list[str]:
    """Names of the moments of robust margins that every run has."""
    if isinstance(data, pd.DataFrame):
        return []
    stream = f"robust_{split}"
    columns = [run.columns(stream) if stream in run.streams else [] for run in data]
    shared = [name for name in columns[0] if all(name in others for others in columns)] if columns else []
    return [
        ROBUST + name.removeprefix("margin_").removesuffix("_upper") for name in shared if name.startswith("margin_")
    ]


def _further(panel: Panel, source: Source, names: Sequence[str], notes: list[str]) -> Logs:
    found = {}
    for name in names:
        try:
            logs = panel.further(source, name)
        except SettingError:
            logs = None
        if logs is None:
            notes.append(f"{name}: not measured, or not above 0, at every step: left out")
        else:
            found[name] = logs
    return found


def _by_run(panel: Panel, further: Logs, names: Sequence[str]) -> list[_RunLogs]:
    runs = []
    for row, (run, key) in enumerate(zip(panel.ids, panel.keys, strict=True)):
        inside = panel.grouping.valid[row]
        settings = dict(zip(names, key, strict=True))
        lr: object = settings.get("lr")
        logs = {name: block[row, inside] for name, block in (panel.logs | further).items()}
        log_lr = float(np.log(lr)) if isinstance(lr, int | float | np.number) and lr > 0 else None
        runs.append(_RunLogs(run, str(settings.get("optimizer", "")), log_lr, logs))
    return runs


def _laws(
    x: str, y: str, mediator: str, rivals: Sequence[str], normed: bool, runs: Sequence[_RunLogs], notes: list[str]
) -> list[tuple[str, str, Fit]]:
    laws: list[tuple[str, str, Fit]] = []
    for target in (x, y):
        laws += [
            (target, "paper", _line(target, mediator, 1.0)),
            (target, "shared", _shared(target, (x, y), mediator)),
            (target, "separate", _line(target, mediator)),
            *((target, f"rival: {rival}", _line(target, rival)) for rival in rivals),
        ]
    if normed:
        laws.append((y, "normalised", _normalised(y, mediator)))
    if all(run.log_lr is not None for run in runs):
        laws.append((y, "saturating", _saturating(y, mediator)))
    else:
        notes.append("saturating: the step sizes lr are not known: left out")
    return laws


def _slope(run: _RunLogs, target: str, driver: str) -> float:
    q = run.logs[driver] - run.logs[driver].mean()
    return float(q @ run.logs[target] / max(q @ q, 1e-300))


def _with_slope(train: Sequence[_RunLogs], target: str, driver: str, alpha: float) -> Law:
    constant = float(np.mean([(run.logs[target] - alpha * run.logs[driver]).mean() for run in train]))
    return lambda logs, _: constant + alpha * logs[driver]


def _line(target: str, driver: str, alpha: float | None = None) -> Fit:
    def fit(train: Sequence[_RunLogs]) -> Law:
        slope = alpha if alpha is not None else float(np.mean([_slope(run, target, driver) for run in train]))
        return _with_slope(train, target, driver, slope)

    return fit


def _shared(target: str, targets: Sequence[str], driver: str) -> Fit:
    def fit(train: Sequence[_RunLogs]) -> Law:
        slope = float(np.mean([_slope(run, name, driver) for run in train for name in targets]))
        return _with_slope(train, target, driver, slope)

    return fit


def _normalised(target: str, driver: str) -> Fit:
    def bound(logs: Logs) -> NDArray[np.float64]:
        return np.asarray(np.log(2) + 2 * logs[NORM] + logs[driver])

    def fit(train: Sequence[_RunLogs]) -> Law:
        constant = float(np.mean([(run.logs[target] - bound(run.logs)).mean() for run in train]))
        return lambda logs, _: constant + bound(logs)

    return fit


def _saturating(target: str, driver: str) -> Fit:
    """min(b + log Q, c + d log lr), least squares from the line through all and the level of each step size."""

    def fit(train: Sequence[_RunLogs]) -> Law:
        thin = [np.unique(np.linspace(0, len(run.logs[target]) - 1, _POINTS).astype(int)) for run in train]
        y = np.concatenate([run.logs[target][at] for run, at in zip(train, thin, strict=True)])
        q = np.concatenate([run.logs[driver][at] for run, at in zip(train, thin, strict=True)])
        lr = np.concatenate([np.full(len(at), run.log_lr) for run, at in zip(train, thin, strict=True)])
        weight = np.concatenate([np.full(len(at), len(at) ** -0.5) for at in thin])
        # One step size cannot tell how the cap depends on it.
        slope = 1.0 if np.ptp(lr) > 0 else 0.0
        center = float(lr.mean())

        def law(parameters: NDArray[np.float64], q: NDArray[np.float64], lr: Array) -> NDArray[np.float64]:
            b, c, d = parameters
            return np.asarray(np.minimum(b + q, c + slope * d * (lr - center)))

        starts = [np.array([(y - q).mean(), np.quantile(y, level), 0.0]) for level in (0.5, 0.9)]
        best = min((least_squares(lambda p: weight * (law(p, q, lr) - y), start) for start in starts), key=_cost)
        return lambda logs, log_lr: law(best.x, logs[driver], np.asarray(log_lr))

    return fit


def _cost(solution: object) -> float:
    return float(solution.cost)  # type: ignore[attr-defined]


def _left_out(fit: Fit, target: str, runs: Sequence[_RunLogs], unit: str) -> float:
    """Mean over runs of the root mean square error of the law fitted to the runs of other units."""
    if len({getattr(run, unit) for run in runs}) < 2:
        return float("nan")
    errors = []
    for name in dict.fromkeys(getattr(run, unit) for run in runs):
        law = fit([run for run in runs if getattr(run, unit) != name])
        for run in runs:
            if getattr(run, unit) == name:
                errors.append(float(np.sqrt(np.mean((law(run.logs, run.log_lr) - run.logs[target]) ** 2))))
    return float(np.mean(errors))


def _envelope(runs: Sequence[_RunLogs], targets: Sequence[str], driver: str) -> pd.DataFrame:
    rows = []
    for target in targets if len(runs) > 1 else ():
        slack = [run.logs[target] - run.logs[driver] for run in runs]
        for quantile in QUANTILES:
            below = []
            for held, values in enumerate(slack):
                others = np.concatenate([part for index, part in enumerate(slack) if index != held])
                below.append(float((values <= np.quantile(others, quantile)).mean()))
            rows.append((target, quantile, float(np.quantile(np.concatenate(slack), quantile)), float(np.mean(below))))
    return pd.DataFrame(rows, columns=["target", "quantile", "log_constant", "coverage"])


def _frame(rows: Sequence[tuple[str, str, float, float, int]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["target", "model", "loro", "looo", "runs"])
    order = {target: position for position, target in enumerate(dict.fromkeys(frame["target"]))}
    frame["order"] = frame["target"].map(order)
    return frame.sort_values(["order", "loro"], kind="stable", ignore_index=True).drop(columns="order")
