"""Series over the steps of a run: recorded scalars, and metrics computed from its per-sample columns.

A metric is computed in float64, chunk by chunk, over all steps of a chunk at once.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import calibration, margins
from analysis.plugins import SettingError
from analysis.segments import STEP, Array

if TYPE_CHECKING:
    from analysis.run import Run

Function = Callable[..., Any]


class Metric(NamedTuple):
    """Where a metric comes from: ``function(*columns, **options)`` takes [rows, n, ...] and returns [rows].

    Attributes:
        stream: "examples", or "logits", whose function also takes the labels [n] after the logits.
        columns: of that stream.
        function: what computes it.
    """

    stream: str
    columns: tuple[str, ...]
    function: Function


def _confidence(log_one_minus_confidence: Array) -> Array:
    return -np.expm1(log_one_minus_confidence.astype(np.float64))


def _from_confidence(function: Function) -> Metric:
    @wraps(function)
    def compute(log_one_minus_confidence: Array, correct: Array, **options: Any) -> Any:
        return function(_confidence(log_one_minus_confidence), correct, **options)

    return Metric("examples", ("log_one_minus_confidence", "correct"), compute)


def _from_logits(function: Function) -> Metric:
    @wraps(function)
    def compute(logits: Array, labels: Array, **options: Any) -> Any:
        return function(logits.astype(np.float64), labels, from_logits=True, **options)

    return Metric("logits", ("logits",), compute)


def _mean(values: Array) -> Any:
    return np.mean(values, axis=-1, dtype=np.float64)


def _mean_confidence(log_one_minus_confidence: Array) -> Any:
    return calibration.mean_confidence(_confidence(log_one_minus_confidence))


def _mean_one_minus_p_true(log_one_minus_p_true: Array) -> Any:
    return _mean(np.exp(log_one_minus_p_true.astype(np.float64)))


def _nll(log_one_minus_p_true: Array) -> Any:
    # p = -expm1(log(1 - p)) is as precise as the column for small p too. Below 1e-45 p is 0 in float32 and
    # its logarithm is lost: NaN, so that the step is left out.
    p_true = _confidence(log_one_minus_p_true)
    return _mean(-np.log(np.where(p_true > 0, p_true, np.nan)))


def _min_margin(margin: Array) -> Any:
    return margin.min(axis=-1).astype(np.float64)


def _margin_quantile(margin: Array, q: float = 0.5) -> Any:
    if not 0 <= q <= 1:
        raise SettingError(f"margin_quantile: q = {q!r}; expected a number in [0, 1]")
    return np.quantile(margin.astype(np.float64), q, axis=-1)


_OF_CONFIDENCE: list[Function] = [
    calibration.ece,
    calibration.mce,
    calibration.kce,
    calibration.weighted_kce,
    calibration.smooth_ece,
    calibration.soft_ece,
    calibration.confidence_gap,
    calibration.mean_absolute_gap,
    calibration.aurc,
    calibration.selective_risk,
]
_OF_LOGITS: list[Function] = [calibration.classwise_ece, calibration.skce, calibration.brier]

METRICS: dict[str, Metric] = {
    **{function.__name__: _from_confidence(function) for function in _OF_CONFIDENCE},
    **{function.__name__: _from_logits(function) for function in _OF_LOGITS},
    "accuracy": Metric("examples", ("correct",), calibration.accuracy),
    "mean_confidence": Metric("examples", ("log_one_minus_confidence",), _mean_confidence),
    "mean_one_minus_p_true": Metric("examples", ("log_one_minus_p_true",), _mean_one_minus_p_true),
    "nll": Metric("examples", ("log_one_minus_p_true",), _nll),
    "exp_moment": Metric("examples", ("margin",), margins.exp_moment),
    "exp_moment_predicted": Metric("examples", ("predicted_margin",), margins.exp_moment),
    "log_exp_moment": Metric("examples", ("margin",), margins.log_exp_moment),
    "mean_margin": Metric("examples", ("margin",), _mean),
    "min_margin": Metric("examples", ("margin",), _min_margin),
    "margin_quantile": Metric("examples", ("margin",), _margin_quantile),
}
"""By name. exp_moment is the paper's Q, exp_moment_predicted its label-free twin (of predicted margins),
min_margin its gamma."""


def series(run: "Run", name: str, split: str, options: Mapping[str, Any]) -> pd.Series:
    """What `Run.metric` returns, computed anew."""
    scalars = run.frame().drop(columns=STEP)
    for column in (name, f"{name}_{split}"):
        if column in scalars.columns and not options:
            return scalars[column].rename(name).rename_axis(STEP).dropna()
    if name not in METRICS:
        raise SettingError(
            f"metric {name!r}: not in run {run.id}; recorded: {', '.join(scalars.columns) or 'no scalars'}; "
            f"computed from samples: {', '.join(sorted(METRICS))}"
        )
    metric = METRICS[name]
    _check_options(name, metric, options)
    stream = f"{metric.stream}_{split}"
    if stream not in run.streams:
        raise SettingError(
            f"metric {name!r}, split {split!r}: run {run.id} has no stream {stream}; its streams are "
            f"{', '.join(run.streams) or 'empty'} (the setting probes.{metric.stream} records them)"
        )
    labels = (run.labels(split),) if metric.stream == "logits" else ()
    steps, values = [], []
    for chunk_steps, columns in run.chunks(stream, metric.columns):
        steps.append(chunk_steps)
        values.append(metric.function(*(columns[column] for column in metric.columns), *labels, **options))
    index = pd.Index(np.concatenate(steps), name=STEP)
    return pd.Series(np.concatenate(values), index, np.float64, name).dropna()


def _check_options(name: str, metric: Metric, options: Mapping[str, Any]) -> None:
    # The first parameters are what the columns stand for; from_logits is settled.
    taken = 2 if metric.stream == "logits" else len(metric.columns)
    parameters = list(inspect.signature(metric.function).parameters.values())[taken:]
    accepted = [parameter.name for parameter in parameters if parameter.name != "from_logits"]
    for option in options:
        if option not in accepted:
            raise SettingError(f"metric {name!r}: unknown option {option}; accepted: {', '.join(accepted) or 'none'}")
    for parameter in parameters:
        if parameter.name in accepted and parameter.default is parameter.empty and parameter.name not in options:
            raise SettingError(f"metric {name!r}: needs the option {parameter.name}")
