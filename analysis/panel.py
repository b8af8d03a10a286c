"""Series of several runs side by side: the reading, aligning and checking that the tests over runs share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.permutation import Grouping
from analysis.plugins import SettingError
from analysis.run import Run

Array = NDArray[Any]
Data = Iterable[Run] | pd.DataFrame
Window = Literal["all", "before_peak", "interpolating"] | tuple[int, int]

WITHIN = ("optimizer", "lr")
MIN_STEPS = 30
"""A stratum with fewer common steps is left out: its whitened series would be noise."""

ALIASES = {
    "Q": "exp_moment",
    "Q_hat": "exp_moment_predicted",
    "lam": "lambda_max",
    "sharpness": "lambda_max",
    "gnorm": "gradient_norm",
}
"""Short names of series, in calls and in the columns of a user's table."""

_KEYS = {"run", "step", "seed", "stratum", "split", *WITHIN}

_FREE = {"seed", "steps", "probes", "device"}
"""Settings in which the runs of a stratum may differ."""


class DesignError(ValueError):
    """The runs cannot answer the question; the sentence says why. Tests turn it into INCONCLUSIVE."""


class Source:
    """Where series come from: records, or a long table with columns run, step, and one for each series.

    Args:
        data: runs, or a table.
        split: sample of the metrics.
        within: columns, or settings, whose values make the strata; in a table those that it has, or ``stratum``.

    Attributes:
        ids: names of the runs.
        keys: stratum of each run.
        notes: what a reader should know.

    Raises:
        SettingError: a table without run or step, with a step twice, or with a run in two strata; records of a
            stratum that differ in more than their seed; no runs.
    """

    def __init__(self, data: Data, split: str, within: Sequence[str]) -> None:
        self.split = split
        self.notes: list[str] = []
        self.ids: list[str] = []
        self.keys: list[tuple[Any, ...]] = []
        self._runs: list[Run] | None = None
        self._columns: dict[str, Array] = {}
        if isinstance(data, pd.DataFrame):
            self._from_table(data, within)
        else:
            self._runs = list(data)
            settings = {"lr": "optimizer.lr", "optimizer": "optimizer.name"}
            self.ids = [run.id for run in self._runs]
            self.keys = [tuple(run.setting(settings.get(name, name)) for name in within) for run in self._runs]
            self._check_records()
        if not self.ids:
            raise SettingError("runs: there are none; expected records, or a table with one row per run and step")

    def _check_records(self) -> None:
        """Runs of a stratum must differ in their seed only, or its mean curve would be of unlike things."""
        first: dict[tuple[Any, ...], Run] = {}
        for run, key in zip(self._runs or (), self.keys, strict=True):
            if self.ids.count(run.id) > 1:
                raise SettingError(f"run {run.id}: is there twice")
            other = first.setdefault(key, run)
            setting = _first_difference(run.spec, other.spec)
            if setting:
                raise SettingError(
                    f"runs {other.id} and {run.id} differ in {setting}, but are both in stratum {_label(key)}; "
                    f"select runs that share it, or add {setting!r} to within"
                )

    def _from_table(self, table: pd.DataFrame, within: Sequence[str]) -> None:
        for column in ("run", "step"):
            if column not in table.columns:
                raise SettingError(f"table: no column {column!r}; it has {', '.join(map(str, table.columns))}")
            if table[column].isna().any():
                raise SettingError(f"table: column {column!r} has missing values; expected one in each row")
        columns = [name for name in within if name in table.columns]
        columns = columns or [name for name in ("stratum",) if name in table.columns]
        if not columns:
            self.notes.append(f"the table has no column {' or '.join(within)}: all runs are one stratum")
        self._table = table
        codes, names = pd.factorize(table["run"])
        steps = self._numbers("step")
        if (steps == np.rint(steps)).all():
            steps = steps.astype(np.int64)
        self._order = np.lexsort((steps, codes))
        self._steps, codes = steps[self._order], codes[self._order]
        twice = (codes[1:] == codes[:-1]) & (self._steps[1:] == self._steps[:-1])
        if twice.any():
            row = int(np.flatnonzero(twice)[0])
            raise SettingError(f"run {names[codes[row]]}: step {self._steps[row]} is there twice")
        self._bounds = np.flatnonzero(np.diff(codes, prepend=-1, append=-1))
        self.ids = [str(name) for name in names]
        keys = []
        for column in columns:
            levels, values = pd.factorize(table[column])
            levels = levels[self._order]
            changing = (levels[1:] != levels[:-1]) & (codes[1:] == codes[:-1])
            if changing.any() or (levels < 0).any():
                run = names[codes[np.argmax(changing) if changing.any() else np.argmax(levels < 0)]]
                raise SettingError(f"run {run}: {column} changes within the run, or is missing; expected one value")
            keys.append([values[level] for level in levels[self._bounds[:-1]]])
        self.keys = list(zip(*keys, strict=True)) if columns else [()] * len(self.ids)

    def has(self, name: str) -> bool:
        """Whether every run has the series."""
        try:
            for index in range(len(self.ids)):
                self.series(index, name)
        except SettingError:
            return False
        return True

    def others(self, used: Iterable[str], candidates: Sequence[str]) -> list[str]:
        """Further series: of a table all numeric columns, of records those of the candidates that they have."""
        taken = {canonical(name) for name in used}
        if self._runs is None:
            numeric = self._table.select_dtypes("number").columns.map(str)
            return [n for n in numeric if n not in _KEYS and canonical(n) not in taken and self._is_positive(n)]
        return [name for name in candidates if canonical(name) not in taken and self.has(name)]

    def _is_positive(self, column: str) -> bool:
        return bool((self._table[column] > 0).all())

    def series(self, index: int, name: str) -> tuple[Array, Array]:
        """Steps and values of a run, where it has one.

        Raises:
            SettingError: no such series.
        """
        if self._runs is not None:
            values = self._runs[index].metric(canonical(name), self.split)
            return values.index.to_numpy(), values.to_numpy(np.float64)
        rows = slice(self._bounds[index], self._bounds[index + 1])
        return self._steps[rows], self._sorted(self._column(name))[rows]

    def training_accuracy(self, index: int) -> tuple[Array, Array]:
        """Steps and accuracy on the training sample, whatever the split.

        Raises:
            SettingError: it was not recorded.
        """
        if self._runs is not None:
            values = self._runs[index].metric("accuracy", "train")
            return values.index.to_numpy(), values.to_numpy(np.float64)
        for name in ("accuracy_train", "accuracy"):
            if name in self._table.columns:
                return self.series(index, name)
        raise SettingError("window = 'interpolating': the table has no column accuracy_train to tell when a run does")

    def _column(self, name: str) -> str:
        spellings = [s for s, full in ALIASES.items() if full == canonical(name)]
        for column in (name, canonical(name), *spellings, f"{canonical(name)}_{self.split}"):
            if column in self._table.columns:
                return column
        columns = [str(column) for column in self._table.columns if column not in _KEYS]
        raise SettingError(f"series {name!r}: no such column in the table; its columns are {', '.join(columns)}")

    def _sorted(self, column: str) -> Array:
        """A column in the order of runs and steps."""
        if column not in self._columns:
            self._columns[column] = self._numbers(column)[self._order]
        return self._columns[column]

    def _numbers(self, column: str) -> Array:
        try:
            return self._table[column].to_numpy(np.float64)
        except (TypeError, ValueError):
            raise SettingError(f"series {column!r}: has values that are not numbers") from None


def _first_difference(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> str:
    """Dotted name of the first setting, free ones apart, in which two specs differ; empty where there is none."""
    for key in {**one, **other}:
        a, b = one.get(key), other.get(key)
        if a != b and prefix + key not in _FREE:
            if isinstance(a, Mapping) and isinstance(b, Mapping):
                return _first_difference(a, b, f"{prefix}{key}.")
            return prefix + key
    return ""


def canonical(name: str) -> str:
    """The full name of a series."""
    return ALIASES.get(name, name)


@dataclass(frozen=True)
class Panel:
    """Logarithms of series on the steps that the runs of a stratum share.

    Attributes:
        ids: names of the runs, stratum by stratum.
        keys: their strata.
        steps: steps of each run, padded with -1, int [runs, steps].
        logs: by name, [runs, steps]; 0 where padded.
        grouping: strata and valid steps.
        notes: what was left out or cut, and why.
    """

    ids: tuple[str, ...]
    keys: tuple[tuple[Any, ...], ...]
    steps: Array
    logs: dict[str, Array]
    grouping: Grouping
    notes: tuple[str, ...]

    @property
    def strata(self) -> int:
        """How many."""
        return len(self.grouping.members)

    @property
    def counts(self) -> tuple[int, int]:
        """Fewest and most steps of a run."""
        counts = self.grouping.valid.sum(axis=1)
        return int(counts.min()), int(counts.max())

    def further(self, source: Source, name: str) -> Array | None:
        """Logarithms of one more series on these steps, [runs, steps]; None where some are not to be had."""
        logs = np.zeros_like(self.steps, np.float64)
        for row, run in enumerate(self.ids):
            inside = self.grouping.valid[row]
            steps, values = source.series(source.ids.index(run), name)
            wanted = self.steps[row, inside]
            at = np.minimum(np.searchsorted(steps, wanted), max(len(steps) - 1, 0))
            if not len(steps) or (steps[at] != wanted).any():
                return None
            if not (np.isfinite(values[at]).all() and (values[at] > 0).all()):
                return None
            logs[row, inside] = np.log(values[at])
        return logs


def read_panel(source: Source, names: Sequence[str], window: Window) -> Panel:
    """The series on the common steps of each stratum, inside the window.

    The window is settled for a stratum as a whole, from what does not depend on which x goes with which y, so the
    permutations within strata stay valid:

    * ``"all"``: every common step.
    * ``"before_peak"``: up to the peak of the stratum's mean curve of the second series' logarithm.
    * ``"interpolating"``: steps at which every run of the stratum has training accuracy 1.
    * ``(first, last)``: steps from first to last, both included.

    Args:
        source: the data.
        names: series to read, the second of them that of the peak.
        window: which steps.

    Raises:
        SettingError: an unknown window; a value that is not finite, zero or negative, naming run and step.
        DesignError: no stratum is left, or a series is constant in a run.
    """
    notes = list(source.notes)
    blocks: list[tuple[tuple[Any, ...], list[int], Array, dict[str, Array]]] = []
    for key in sorted(set(source.keys), key=repr):
        rows = [index for index, other in enumerate(source.keys) if other == key]
        if len(rows) < 2:
            notes.append(f"stratum {_label(key)} left out: run {source.ids[rows[0]]} is its only one")
            continue
        steps, values = _align(source, rows, names, notes)
        inside = _inside(source, rows, steps, values[names[1]], window)
        if inside.sum() < MIN_STEPS:
            notes.append(
                f"stratum {_label(key)} left out: {inside.sum()} common steps in the window, expected {MIN_STEPS} or "
                "more"
            )
            continue
        logs = {name: _log(source, rows, name, steps[inside], block[:, inside]) for name, block in values.items()}
        blocks.append((key, rows, steps[inside], logs))
    if not blocks:
        raise DesignError("; ".join(notes))
    width = max(len(steps) for _, _, steps, _ in blocks)
    order = [row for _, rows, _, _ in blocks for row in rows]
    stratum = np.concatenate([np.full(len(rows), code) for code, (_, rows, _, _) in enumerate(blocks)])
    padded = np.concatenate([np.tile(_pad(steps[None], width, -1), (len(rows), 1)) for _, rows, steps, _ in blocks])
    logs = {name: np.concatenate([_pad(part[name], width, 0.0) for *_, part in blocks]) for name in names}
    grouping = Grouping(stratum, padded >= 0)
    ids = tuple(source.ids[row] for row in order)
    for name, block in logs.items():
        still = np.ptp(np.where(grouping.valid, block, block[:, :1]), axis=1) == 0
        if still.any():
            constant = ", ".join(run for run, flag in zip(ids, still, strict=True) if flag)
            raise DesignError(f"{name} is constant in run {constant}: a series that does not move cannot be tested")
    return Panel(ids, tuple(source.keys[row] for row in order), padded, logs, grouping, tuple(notes))


def _align(source: Source, rows: list[int], names: Sequence[str], notes: list[str]) -> tuple[Array, dict[str, Array]]:
    """Steps that the runs have in common, and each series there, [runs, steps]."""
    found = {(row, name): _measured(source, row, name) for row in rows for name in names}
    steps = reduce(np.intersect1d, [steps for steps, _ in found.values()])
    longest = max(len(steps) for steps, _ in found.values())
    if len(steps) < longest:
        lengths = {row: min(len(found[row, name][0]) for name in names) for row in rows}
        shortest = min(lengths, key=lambda row: lengths[row])
        notes.append(
            f"stratum {_label(source.keys[rows[0]])}: aligned on the {len(steps)} steps that all its runs have for "
            f"all series (of up to {longest}; fewest in run {source.ids[shortest]}: {lengths[shortest]})"
        )
    values = {
        name: np.stack([found[row, name][1][np.searchsorted(found[row, name][0], steps)] for row in rows])
        for name in dict.fromkeys(names)
    }
    _no_holes(source, rows, steps, values)
    measured = np.all([np.isfinite(block).all(axis=0) for block in values.values()], axis=0)
    return steps[measured], {name: block[:, measured] for name, block in values.items()}


def _measured(source: Source, row: int, name: str) -> tuple[Array, Array]:
    steps, values = source.series(row, name)
    if np.isinf(values).any():
        step = steps[np.isinf(values)][0]
        raise SettingError(f"run {source.ids[row]}: {name} is infinite at step {step}; leave the run or step out")
    return steps, values


def _no_holes(source: Source, rows: list[int], steps: Array, values: dict[str, Array]) -> None:
    """A step that no run of the stratum measured was not due; one that only some measured is a hole."""
    for name, block in values.items():
        missing = np.isnan(block)
        holes = missing & ~missing.all(axis=0)
        if holes.any():
            run, step = np.argwhere(holes)[0]
            raise SettingError(
                f"run {source.ids[rows[run]]}: {name} is NaN at step {steps[step]}, where other runs of stratum "
                f"{_label(source.keys[rows[run]])} have a value; leave the run out, or drop its rows without one"
            )


def _inside(source: Source, rows: list[int], steps: Array, second: Array, window: Window) -> Array:
    if window == "all":
        return np.ones(len(steps), bool)
    if window == "before_peak":
        if not len(steps):
            return np.zeros(0, bool)
        return np.arange(len(steps)) <= np.argmax(np.log(np.maximum(second, 1e-300)).mean(axis=0))
    if window == "interpolating":
        inside = np.ones(len(steps), bool)
        for row in rows:
            at, accuracy = source.training_accuracy(row)
            inside &= np.isin(steps, at[accuracy == 1])
        return inside
    if isinstance(window, Sequence) and len(window) == 2 and not isinstance(window, str):
        return (steps >= window[0]) & (steps <= window[1])
    raise SettingError(
        f"window = {window!r}: accepted: 'all', 'before_peak', 'interpolating' or a pair of steps (first, last)"
    )


def _log(source: Source, rows: list[int], name: str, steps: Array, values: Array) -> Array:
    if (values <= 0).any():
        run, step = np.argwhere(values <= 0)[0]
        raise SettingError(
            f"run {source.ids[rows[run]]}: {name} is {values[run, step]:g} at step {steps[step]}; the test takes "
            f"logarithms, so expected a value above 0"
        )
    return np.log(values)


def _pad(block: Array, width: int, fill: float) -> Array:
    return np.pad(block, ((0, 0), (0, width - block.shape[1])), constant_values=fill)


def _label(key: tuple[Any, ...]) -> str:
    return "(" + ", ".join(str(part) for part in key) + ")"
