"""Ways to calibrated predictions side by side: training losses, deep ensembles and post-hoc calibrators."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis import calibration
from analysis.plugins import SettingError
from analysis.predictions import Array, Floats, softmax
from analysis.recalibrate import Method, refuse_same_name, refuse_same_split, short_name
from analysis.recalibration import named
from analysis.results import Result
from analysis.run import Run
from analysis.runs import Runs
from analysis.selection import Rule, Selection, rule_of, select

METRICS = ("accuracy", "ece", "nll", "brier")
_NAMES = {"ce": "CE", "mse": "MSE", "label_smoothing": "label smoothing", "focal": "focal loss"}
_SHARED_BY_SEEDS = ("probes", "device")
"""Settings that make no other network."""


def method(run: Run) -> str:
    """What the loss is called in the paper's tables: "CE", "CalMO", "Flat", "Rob"; its own name otherwise."""
    name = str(run.setting("loss.name") or "")
    if name == "calmo":
        robust, smooth = (float(run.setting(f"loss.lambda_{term}") or 0) for term in ("r", "s"))
        return "CalMO" if robust and smooth else "Rob" if robust else "Flat"
    return _NAMES.get(name, name)


def settings_without(run: Run, *ignored: str) -> str:
    """A key that runs share whose specs differ in these top-level settings only, and in what they record and where."""
    kept = {key: value for key, value in run.spec.items() if key not in (*ignored, *_SHARED_BY_SEEDS)}
    return json.dumps(kept, sort_keys=True, default=str)


@dataclass(frozen=True)
class MethodTable(Result):
    """Test accuracy, ECE, NLL and Brier score of each method.

    Attributes:
        frame: one row per setting and method: optimizer, lr, setting (what else tells rows of one name apart, or
            empty), method, each of `METRICS` as a mean over seeds and its ``_std`` (ddof 1, NaN of one value and of
            infinite ones), values (how many the mean is over), selection ("best" or "last", see `analysis.selection`).
        fit_split: what calibrators were fitted on.
        report_split: what all numbers are of.
        notes: what was asked for and could not be done.
    """

    frame: pd.DataFrame
    fit_split: str
    report_split: str
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        return self.frame.copy()

    def summary(self) -> str:
        lines = [
            f"{self.report_split}; calibrators were fitted on {self.fit_split}; mean (standard deviation) over seeds; "
            "an ensemble is one value"
        ]
        for row in self.frame.to_dict("records"):
            numbers = (
                f"{name} {row[name]:.4f}" + (f" ({row[f'{name}_std']:.4f})" if row["values"] > 1 else "")
                for name in METRICS
            )
            name = " ".join(filter(None, [row["method"], row["setting"]]))
            lines.append(
                f"{row['optimizer']} {row['lr']:g}  {name}: {', '.join(numbers)}; "
                f"{row['values']} at the {row['selection']} step"
            )
        return "\n".join([*lines, *self.notes])


def compare_methods(
    runs: Iterable[Run],
    calibrators: Sequence[Method] = (),
    ensemble: bool = False,
    *,
    rule: Rule = "best",
    fit_split: str = "validation",
    report_split: str = "test",
) -> MethodTable:
    """What each training loss reaches alone, with each calibrator, and as an ensemble of its seeds.

    All from recorded logits, each run at its own selected step among those with logits of the splits that are used.
    A calibrator is fitted to one run's validation logits and applied to its test logits. An ensemble averages the
    softmax probabilities of all seeds of a setting (Lakshminarayanan et al. 2017, arXiv 1612.01474): one value,
    without a spread.

    Args:
        runs: with the probe ``logits``; calibrators need a validation split too.
        calibrators: names, tables or methods of `analysis.recalibration`.
        ensemble: whether to add the ensembles, of settings with two seeds or more.
        rule: of model selection.
        fit_split: what calibrators are fitted on.
        report_split: what is reported.

    Raises:
        SettingError: no runs, a run without the logits, no step at which both splits have them, the same samples on
            both splits, an ensemble of runs with different samples, an unknown calibrator.
    """
    refuse_same_name(fit_split, report_split)
    chosen = {short_name(one): named(one) for one in calibrators}
    groups: dict[str, dict[object, Run]] = {}
    for run in runs:
        # Of two recordings of one seed the first counts, or an ensemble could hold a network twice.
        groups.setdefault(settings_without(run, "seed"), {}).setdefault(run.setting("seed"), run)
    if not groups:
        raise SettingError("runs: there are none to compare methods on")
    rows: list[dict[str, Any]] = []
    settings = [list(by_seed.values()) for by_seed in groups.values()]
    for members in settings:
        name = method(members[0])
        found: dict[str, list[dict[str, float]]] = {}
        probabilities: list[Floats] = []
        selections: list[Selection] = []
        for run in members:
            selection = _select(run, (fit_split, report_split) if chosen else (report_split,), rule)
            selections.append(selection)
            logits, labels = _logits(run, report_split, selection), run.labels(report_split)
            found.setdefault(name, []).append(scores(logits, labels, from_logits=True))
            for label, calibrator in chosen.items():
                inner = _logits(run, fit_split, selection)
                refuse_same_split(inner, logits, fit_split, report_split)
                fitted = calibrator.fit(inner, run.labels(fit_split))
                found.setdefault(f"{name} + {label}", []).append(scores(fitted(logits), labels, from_logits=False))
            probabilities.append(softmax(logits))
        if ensemble and len(members) > 1:
            together = scores(np.mean(probabilities, axis=0), _shared_labels(members, report_split), from_logits=False)
            found[f"{name} ensemble of {len(members)}"] = [together]
        rows += [_row(members[0], label, values, selections) for label, values in found.items()]
    single = sum(len(members) == 1 for members in settings) if ensemble else 0
    notes = (f"No ensemble of {single} of {len(settings)} settings, which have one seed.",) if single else ()
    frame = pd.DataFrame(rows)
    frame.insert(2, "setting", _differing(frame, [members[0] for members in settings]))
    return MethodTable(frame.drop(columns="run"), fit_split, report_split, notes)


def scores(values: ArrayLike, labels: Array, *, from_logits: bool) -> dict[str, float]:
    """Each of `METRICS` of logits or probabilities [n, K] and labels [n]; ECE with 15 bins of equal width."""
    confidence, correct = calibration.top_label(values, labels, from_logits=from_logits)
    return {
        "accuracy": float(calibration.accuracy(correct)),
        # A mean or a calibrator may end a rounding above 1.
        "ece": float(calibration.ece(np.clip(confidence, 0, 1), correct)),
        "nll": float(calibration.nll(values, labels, from_logits=from_logits)),
        "brier": float(calibration.brier(values, labels, from_logits=from_logits)),
    }


def _select(run: Run, splits: Sequence[str], rule: Rule) -> Selection:
    streams = [f"logits_{split}" for split in splits]
    for stream, split in zip(streams, splits, strict=True):
        if stream not in run.streams:
            raise SettingError(
                f"run {run.id} has no stream {stream}; its streams are {', '.join(run.streams) or 'empty'} (the "
                f"setting probes.logits records it{_held_out(split)})"
            )
    steps: NDArray[np.int64] = reduce(np.intersect1d, [run.steps(stream) for stream in streams])
    if not len(steps):
        raise SettingError(f"run {run.id}: {' and '.join(streams)} have no step in common")
    return select(run, steps, rule)


def _held_out(split: str) -> str:
    return ", where dataset.validation_size holds samples out" if split == "validation" else ""


def _logits(run: Run, split: str, selection: Selection) -> Floats:
    return np.asarray(run.rows(f"logits_{split}", "logits", [selection.step])[0], np.float64)


def _shared_labels(members: Sequence[Run], split: str) -> Array:
    first = members[0].labels(split)
    for other in members[1:]:
        if not np.array_equal(first, other.labels(split)):
            raise SettingError(
                f"ensemble: runs {members[0].id} and {other.id} have different {split} samples; expected the same"
            )
    return first


def _row(run: Run, name: str, values: list[dict[str, float]], selections: list[Selection]) -> dict[str, Any]:
    numbers = {}
    for metric in METRICS:
        column = np.array([one[metric] for one in values])
        # A calibrator can give a label probability 0, and so an infinite NLL, which has no spread.
        spread = len(column) > 1 and np.isfinite(column).all()
        numbers[metric] = float(column.mean())
        numbers[f"{metric}_std"] = float(column.std(ddof=1)) if spread else float("nan")
    lr = run.setting("optimizer.lr")
    return {
        "run": run.id,
        "optimizer": str(run.setting("optimizer.name") or ""),
        "lr": float("nan") if lr is None else float(lr),
        "method": name,
        **numbers,
        "values": len(values),
        "selection": rule_of(selections),
    }


def _differing(frame: pd.DataFrame, firsts: Sequence[Run]) -> list[str]:
    """For each row, the settings that tell it from others of the same optimizer, lr and method."""
    ignored = {"run", "status", "step", "steps", "seed", "optimizer", "lr", "loss", "device"}
    by_id = {run.id: run for run in firsts}
    words: dict[tuple[str, str], str] = {}
    for _, rows in frame.groupby(["optimizer", "lr", "method"], dropna=False, sort=False):
        ids = list(dict.fromkeys(rows["run"]))
        table = Runs([by_id[one] for one in ids]).table()
        kept = [key for key in map(str, table) if key not in ignored and not key.startswith("probes.")]
        kept += ["steps"] if table["steps"].nunique() > 1 else []
        different = [key for key in kept if table[key].astype(str).nunique() > 1]
        for one, row in zip(ids, table[different].to_dict("records"), strict=True):
            words[one, str(rows["method"].iloc[0])] = ", ".join(f"{key} = {value}" for key, value in row.items())
    return [words[run, name] for run, name in zip(frame["run"], frame["method"], strict=True)]
