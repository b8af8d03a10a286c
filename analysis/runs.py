"""Runs: reads a folder of records."""

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, overload

import pandas as pd

from analysis.plugins import SettingError
from analysis.run import Run
from analysis.segments import RecordError

_SETTINGS = {
    "optimizer": "optimizer.name",
    "lr": "optimizer.lr",
    "loss": "loss.name",
    "seed": "seed",
    "dataset": "dataset.name",
    "model": "model.name",
}
"""What tells runs apart in frames: column -> where the spec has it."""


class Runs(Sequence[Run]):
    """Records read together, in the order of their folders.

    Attributes:
        runs: them.
        problems: a sentence for each record that could not be read, and was left out.
    """

    def __init__(self, runs: Sequence[Run], problems: Sequence[str] = ()) -> None:
        self.runs = list(runs)
        self.problems = list(problems)

    @classmethod
    def open(cls, folder: str | Path) -> "Runs":
        """Read the record at ``folder``, or all records below it.

        Raises:
            RecordError: there is no such folder.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise RecordError(f"{folder}: there is no such folder")
        runs, problems = [], []
        for path in _records(folder):
            try:
                runs.append(Run.open(path))
            except RecordError as error:
                problems.append(str(error))
        return cls(runs, problems)

    def __len__(self) -> int:
        return len(self.runs)

    @overload
    def __getitem__(self, key: int | str) -> Run: ...
    @overload
    def __getitem__(self, key: slice) -> "Runs": ...
    def __getitem__(self, key: int | str | slice) -> "Run | Runs":
        """A run by position or id, or some runs by a slice.

        Raises:
            SettingError: no run has that id.
        """
        if isinstance(key, slice):
            return Runs(self.runs[key], self.problems)
        if isinstance(key, int):
            return self.runs[key]
        for run in self.runs:
            if run.id == key:
                return run
        raise SettingError(f"run {key!r}: not among these; there are: {', '.join(r.id for r in self.runs)}")

    def __repr__(self) -> str:
        return f"Runs({len(self)} runs, {len(self.problems)} unreadable)"

    def _repr_html_(self) -> str:
        problems = "".join(f"<p>unreadable: {escape(problem)}</p>" for problem in self.problems)
        return self.table().to_html(escape=True, index=False) + problems

    def select(self, **conditions: Any) -> "Runs":
        """The runs whose settings are as asked.

        Args:
            conditions: optimizer, lr, loss, seed, dataset, model, id or status, or any setting by its dotted
                key (``select(**{"optimizer.rho": 0.05})``); a list, tuple or set accepts any of its values.

        Raises:
            SettingError: no run has such a setting.
        """
        for key in conditions:
            if len(self) and all(_value(run, key) is None for run in self.runs):
                known = dict.fromkeys([*_SETTINGS, "id", "status", *(k for r in self.runs for k in _flat(r.spec))])
                raise SettingError(f"{key}: no run has this setting; accepted: {', '.join(known)}")
        kept = [run for run in self.runs if all(_matches(_value(run, k), v) for k, v in conditions.items())]
        return Runs(kept, self.problems)

    def frame(self) -> pd.DataFrame:
        """The scalars of all runs, one row per run and step.

        The columns run, optimizer, lr, loss, seed, dataset and model come first. A run whose scalars are
        damaged is left out, with a warning and an entry in `problems`.
        """
        frames = []
        for run in self.runs:
            try:
                scalars = run.frame()
            except RecordError as error:
                self.problems.append(str(error))
                warnings.warn(f"left out: {error}", stacklevel=2)
                continue
            settings = {key: value for key, value in _settings(run).items() if key not in scalars.columns}
            frames.append(pd.DataFrame(settings, index=scalars.index).join(scalars))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def table(self) -> pd.DataFrame:
        """One row per run: run, status, step (the last recorded), steps (planned) and settings.

        Settings that differ among the runs follow under their dotted keys. The status "killed" is that of a
        run whose run.json says "running" while nobody writes it.
        """
        shown = set(_SETTINGS.values()) | {"steps"}
        flat = [_flat(run.spec) for run in self.runs]
        keys = dict.fromkeys(key for settings in flat for key in settings if key not in shown)
        differing = [key for key in keys if len({repr(settings.get(key)) for settings in flat}) > 1]
        return pd.DataFrame(
            {
                "run": run.id,
                "status": "killed" if run.status == "running" and not run.writing else run.status,
                "step": run.last_step,
                "steps": run.setting("steps"),
                **{key: value for key, value in _settings(run).items() if key != "run"},
                **{key: settings.get(key) for key in differing},
            }
            for run, settings in zip(self.runs, flat, strict=True)
        )


def _records(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder):
        if "run.json" in files:
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _settings(run: Run) -> dict[str, Any]:
    return {"run": run.id, **{column: run.setting(key) for column, key in _SETTINGS.items()}}


def _value(run: Run, key: str) -> Any:
    if key in ("id", "status"):
        return getattr(run, key)
    return run.setting(_SETTINGS.get(key, key))


def _matches(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list | tuple | set | frozenset) and not isinstance(value, list):
        return any(_matches(value, one) for one in wanted)
    if isinstance(value, float) and isinstance(wanted, int | float):
        return math.isclose(value, wanted, rel_tol=1e-9)
    return bool(value == wanted)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
