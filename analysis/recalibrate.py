"""Before and after: post-hoc recalibration fitted on one split and reported on another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from analysis import calibration
from analysis.binning import choose
from analysis.bootstrap import Interval, interval, resample
from analysis.plugins import SettingError
from analysis.predictions import Array, Floats, as_labels, as_logits
from analysis.recalibration import RECALIBRATIONS, Calibrator, Recalibration, named
from analysis.results import Result
from analysis.run import Run

Method = str | Mapping[str, Any] | Recalibration


class _Metric(NamedTuple):
    """function(*columns) of the per-sample columns of `_columns`; its values lie in [low, high]."""

    columns: tuple[str, ...]
    function: Any
    low: float = 0.0
    high: float = 1.0


def _mean(values: Array) -> Floats:
    return np.asarray(values.mean(axis=-1))


_SCORES = ("confidence", "correct")
METRICS = {
    "accuracy": _Metric(("correct",), _mean),
    "aurc": _Metric(_SCORES, calibration.aurc),
    "brier": _Metric(("brier",), _mean, high=2.0),
    "confidence_gap": _Metric(_SCORES, calibration.confidence_gap, low=-1.0),
    "ece": _Metric(_SCORES, calibration.ece),
    "kce": _Metric(_SCORES, calibration.kce),
    "mce": _Metric(_SCORES, calibration.mce),
    "nll": _Metric(("nll",), _mean, high=np.inf),
    "smooth_ece": _Metric(_SCORES, calibration.smooth_ece),
}


@dataclass(frozen=True)
class RecalibrationTable(Result):
    """What each method does to each metric.

    Attributes:
        frame: one row per step, method and metric: before, after and difference (after minus before), each with
            ``_low`` and ``_high``, and ``preserves_argmax``.
        calibrators: the fitted methods, by step and name.
        fit_split, report_split: names of the splits.
        fit_samples, report_samples: their sizes.
        level: of the intervals.
    """

    frame: pd.DataFrame
    calibrators: dict[tuple[int, str], Calibrator]
    fit_split: str
    report_split: str
    fit_samples: int
    report_samples: int
    level: float

    def to_frame(self) -> pd.DataFrame:
        return self.frame.copy()

    def summary(self) -> str:
        last = self.frame[self.frame["step"] == self.frame["step"].max()]
        lines = [
            f"fitted on {self.fit_samples} samples of {self.fit_split}, reported on {self.report_samples} of "
            f"{self.report_split}; {100 * self.level:g}% bootstrap intervals over the reported samples"
        ]
        for row in last.itertuples():
            ends = "" if np.isnan(row.after_low) else f" [{row.after_low:.4f}, {row.after_high:.4f}]"
            change = f"{row.before:.4f} -> {row.after:.4f}{ends}"
            lines.append(f"step {row.step}  {row.method:12s} {row.metric:10s} {change}")
        return "\n".join(lines)


def recalibrate(
    fit_logits: ArrayLike,
    fit_labels: ArrayLike,
    report_logits: ArrayLike,
    report_labels: ArrayLike,
    methods: Sequence[Method] = ("temperature", "isotonic", "histogram", "smart"),
    metrics: Sequence[str] = ("ece", "nll", "brier", "accuracy"),
    *,
    fit_split: str = "validation",
    report_split: str = "test",
    steps: Sequence[int] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> RecalibrationTable:
    """Fit each method on one split, report each metric on another, before and after.

    Args:
        fit_logits: [n, K], or [steps, n, K] for a trajectory: then each step has its own fit.
        fit_labels: integers [n].
        report_logits: [m, K], or [steps, m, K].
        report_labels: integers [m].
        methods: names, tables with settings, or `Recalibration` objects.
        metrics: of ``METRICS``.
        fit_split, report_split: what the splits are called.
        steps: the step of each entry of a trajectory; 0, 1, ... by default.
        resamples: of the bootstrap over reported samples (basic intervals, see `analysis.bootstrap`); the samples
            that are drawn are those of before and after alike. 0 for no intervals. The fit's own sampling error
            is not in them.
        level: of the intervals.
        seed: of the bootstrap.

    Raises:
        SettingError: a method, metric or option that does not exist; or the same samples on both sides, on which
            any method looks good.
        InputError: bad logits or labels.
    """
    inner, outer = as_logits(fit_logits), as_logits(report_logits)
    if inner.ndim != outer.ndim or inner.ndim > 3:
        raise SettingError(
            f"fit logits have shape {inner.shape}, report logits {outer.shape}; expected both [n, K] or both "
            "[steps, n, K]"
        )
    refuse_same_split(inner, outer, fit_split, report_split)
    if inner.ndim == 2:
        inner, outer = inner[None], outer[None]
    steps = range(len(inner)) if steps is None else steps
    if not len(inner) == len(outer) == len(steps):
        raise SettingError(f"{len(inner)} fit and {len(outer)} report logits for {len(steps)} steps; expected as many")
    for metric in metrics:
        choose("metric", metric, tuple(METRICS))
    chosen = {short_name(method): named(method) for method in methods}
    bootstrap = _Bootstrap(resamples, level, seed)
    rows: list[dict[str, Any]] = []
    calibrators: dict[tuple[int, str], Calibrator] = {}
    for step, z_fit, z_report in zip(steps, inner, outer, strict=True):
        labels = as_labels(report_labels, z_report.shape)
        raw = _columns(z_report, labels, from_logits=True)
        for label, method in chosen.items():
            calibrator = method.fit(z_fit, fit_labels)
            calibrators[int(step), label] = calibrator
            new = _columns(calibrator(z_report), labels, from_logits=False)
            for metric in metrics:
                found = bootstrap.compare(METRICS[metric], raw, new)
                rows.append(
                    {"step": int(step), "method": label, "metric": metric}
                    | found
                    | {"preserves_argmax": method.preserves_argmax}
                )
    return RecalibrationTable(
        pd.DataFrame(rows), calibrators, fit_split, report_split, inner.shape[1], outer.shape[1], level
    )


def recalibrate_run(
    run: Run,
    methods: Sequence[Method] = ("temperature", "isotonic", "histogram", "smart"),
    metrics: Sequence[str] = ("ece", "nll", "brier", "accuracy"),
    *,
    fit_split: str = "validation",
    report_split: str = "test",
    every_step: bool = False,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> RecalibrationTable:
    """`recalibrate` for a run's recorded logits, at the last step at which both splits have them, or at every one.

    Raises:
        SettingError: the same split on both sides, or a run without logits of both (the probe ``logits`` records
            them), or without a common step.
    """
    refuse_same_name(fit_split, report_split)
    streams = [f"logits_{split}" for split in (fit_split, report_split)]
    for stream in streams:
        if stream not in run.streams:
            raise SettingError(
                f"run {run.id} has no stream {stream}; its streams are {', '.join(run.streams) or 'empty'} "
                "(the setting probes.logits records it)"
            )
    recorded = [run.steps(stream) for stream in streams]
    common = np.intersect1d(recorded[0], recorded[1])
    if not len(common):
        raise SettingError(f"run {run.id}: {streams[0]} and {streams[1]} have no step in common")
    common = common if every_step else common[-1:]
    inner, outer = (run.rows(stream, "logits", common) for stream in streams)
    return recalibrate(
        inner,
        run.labels(fit_split),
        outer,
        run.labels(report_split),
        methods,
        metrics,
        fit_split=fit_split,
        report_split=report_split,
        steps=common.tolist(),
        resamples=resamples,
        level=level,
        seed=seed,
    )


def refuse_same_name(fit_split: str, report_split: str) -> None:
    """Raises SettingError if a split is to be fitted and reported on."""
    if fit_split == report_split:
        raise SettingError(f"fit_split = report_split = {fit_split!r}; expected two, such as validation and test")


def refuse_same_split(inner: Floats, outer: Floats, fit_split: str, report_split: str) -> None:
    """Raises SettingError if all samples of the fit are among those of the report, judged by their logits [..., n, K].

    A single distinct row, such as the equal logits of a network at its start, is no evidence of it.
    """
    refuse_same_name(fit_split, report_split)
    fitted = np.unique(inner[-1] if inner.ndim == 3 else inner, axis=0)
    reported = np.unique(outer[-1] if outer.ndim == 3 else outer, axis=0)
    if len(fitted) < 2 or fitted.shape[-1] != reported.shape[-1]:
        return
    known = {row.tobytes() for row in reported}
    if all(row.tobytes() in known for row in fitted):
        raise SettingError(
            f"all {len(fitted)} fit logits of {fit_split!r} are among the report logits of {report_split!r}; "
            "expected samples that the fit has not seen"
        )


def short_name(method: Method) -> str:
    """What a method is called in tables: its name, and those of its settings that are not the defaults."""
    if isinstance(method, str):
        return method
    table = method.table() if isinstance(method, Recalibration) else dict(method)
    default = RECALIBRATIONS.get(str(table.get("name"))).model_fields
    changed = [f"{k}={v}" for k, v in table.items() if k != "name" and v != default[k].default]
    return " ".join([str(table["name"]), *changed])


def _columns(values: Floats, labels: Array, *, from_logits: bool) -> dict[str, Array]:
    """What the metrics read, each [n]."""
    confidence, correct = calibration.top_label(values, labels, from_logits=from_logits)
    alone, label = values[:, None, :], labels[:, None]
    return {
        "confidence": np.clip(confidence, 0, 1),
        "correct": correct,
        "nll": calibration.nll(alone, label, from_logits=from_logits),
        "brier": calibration.brier(alone, label, from_logits=from_logits),
    }


class _Bootstrap(NamedTuple):
    resamples: int
    level: float
    seed: int

    def compare(self, metric: _Metric, before: dict[str, Array], after: dict[str, Array]) -> dict[str, float]:
        sides = [[side[name] for name in metric.columns] for side in (before, after)]
        first, second = (np.asarray(metric.function(*side), dtype=np.float64) for side in sides)
        found = {"before": first, "after": second, "difference": second - first}
        if not self.resamples:
            return {f"{name}{end}": float(v) if not end else np.nan for name, v in found.items() for end in _ENDS}
        drawn = [resample(metric.function, side, (-1,) * len(side), self.resamples, self.seed) for side in sides]
        width = metric.high - metric.low
        ranges = [(metric.low, metric.high), (metric.low, metric.high), (-width, width)]
        row: dict[str, float] = {}
        for (name, estimate), values, within in zip(found.items(), [*drawn, drawn[1] - drawn[0]], ranges, strict=True):
            ends = interval(estimate, values, self.level, within=within)
            row |= _flat(name, ends)
        return row


_ENDS = ("", "_low", "_high")


def _flat(name: str, ends: Interval) -> dict[str, float]:
    return {
        name: float(ends.estimate),
        f"{name}_low": float(ends.low),
        f"{name}_high": float(ends.high),
    }
