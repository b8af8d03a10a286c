"""What figures ask of records: groups of runs, series, means over seeds, and the words for a title."""

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.methods import method
from analysis.plugins import SettingError
from analysis.run import Run
from analysis.runs import Runs
from figures.style import title

NOT_A_METHOD = ("run", "status", "step", "steps", "lr", "seed", "optimizer", "device", "dtype", "threads")
"""Columns of `Runs.table` in which runs of one group may differ."""

MODEL_NAMES = {"mlp": "MLP", "cnn": "CNN", "resnet20": "ResNet-20"}


def by_rate(runs: Iterable[Run]) -> dict[float, list[Run]]:
    """Runs by their step size eta, increasing; a lone NaN where the optimizer has none."""
    found: dict[float, list[Run]] = {}
    for run in runs:
        value = run.setting("optimizer.lr")
        found.setdefault(math.nan if value is None else float(value), []).append(run)
    return dict(sorted(found.items()))


def optimizer(run: Run) -> str:
    """The name of the optimizer; empty where the record is of a loop that named none."""
    return str(run.setting("optimizer.name") or "")


def groups(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs that differ in step size and seed only, by a name such as "BulkSGD, k = 3".

    The name says the optimizer, and of the other settings those in which its runs differ.
    """
    by_optimizer: dict[str, list[Run]] = {}
    for run in runs:
        by_optimizer.setdefault(optimizer(run), []).append(run)
    found: dict[str, list[Run]] = {}
    for name, members in by_optimizer.items():
        table = Runs(members).table()
        ignored = [name for name in map(str, table) if name in NOT_A_METHOD or name.startswith(("probes.", "loss"))]
        settings = table.drop(columns=ignored).astype(str)
        differing = settings.loc[:, settings.nunique() > 1]
        losses = {method(member) for member in members}
        for member, row in zip(members, differing.to_dict("records"), strict=True):
            extra = [f"{str(key).removeprefix('optimizer.')} = {value}" for key, value in row.items()]
            words = [title(name), *([method(member)] if len(losses) > 1 else []), *extra]
            found.setdefault(", ".join(words), []).append(member)
    return found


def slug(text: str) -> str:
    """A name that can be part of a file's name or an anchor: "BulkSGD, k = 3" becomes "bulksgd-k-3"."""
    words = "".join(letter.lower() if letter.isalnum() or letter == "." else " " for letter in text)
    return "-".join(words.split())


def series(run: Run, name: str, split: str = "train", **options: Any) -> "pd.Series[float]":
    """`Run.metric` without what is not finite; empty where the run did not record it."""
    try:
        values: pd.Series[float] = run.metric(name, split=split, **options)
    except SettingError:
        return pd.Series(dtype=float, name=name)
    return values.loc[np.isfinite(values)]


def mean(many: Sequence["pd.Series[float]"]) -> "pd.Series[float]":
    """The mean over series, at the steps that all of them have."""
    recorded = [one for one in many if len(one)]
    if not recorded:
        return pd.Series(dtype=float)
    return pd.concat(recorded, axis=1, join="inner").mean(axis=1)


def thin(values: "pd.Series[float]", points: int) -> "pd.Series[float]":
    """A series of at most about ``points`` values that keeps the least and the greatest of each stretch.

    Keeping every n-th value would hide an oscillation of period 2, the mark of the edge of stability.
    """
    if len(values) <= points:
        return values
    blocks = np.array_split(np.arange(len(values)), max(1, points // 2 - 1))
    numbers = values.to_numpy()
    kept = {int(block[pick(numbers[block])]) for block in blocks for pick in (np.argmin, np.argmax)}
    return values.iloc[sorted(kept | {0, len(values) - 1})]


def scale(runs: Sequence[Run]) -> str:
    """What the numbers were measured on, such as "digits (scikit-learn), 300 training samples, MLP 32-32 tanh"."""
    return "; ".join(dict.fromkeys(_scale(run) for run in runs))


def _scale(run: Run) -> str:
    data, model = run.meta.get("data", {}), run.spec.get("model", {})
    name = str(model.get("name", "a model of one's own"))
    words = [MODEL_NAMES.get(name, name)]
    if model.get("hidden"):
        words.append("-".join(map(str, model["hidden"])))
    if model.get("width"):
        words.append(f"of width {model['width']}")
    if model.get("activation"):
        words.append(str(model["activation"]))
    return f"{data.get('label', 'unnamed data')}, {data.get('n_train', '?')} training samples, {' '.join(words)}"


def pooled(runs: Iterable[Run], stream: str, name: str, step: int) -> NDArray[Any]:
    """A per-sample column at a step, the samples of all runs in one row."""
    return np.concatenate([run.rows(stream, name, [step])[0] for run in runs])


def common_steps(runs: Sequence[Run], stream: str) -> NDArray[np.int64]:
    """Steps at which all runs recorded a stream; none where one of them has no such stream."""
    if any(stream not in run.streams for run in runs):
        return np.array([], np.int64)
    return reduce(np.intersect1d, (run.steps(stream) for run in runs))
