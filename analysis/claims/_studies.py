"""Runs grouped into studies: those that differ in learning rate and seed only."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.coupling import couple
from analysis.plugins import SettingError
from analysis.results import Outcome
from analysis.run import Run
from analysis.selection import ENDED_BADLY

PAPER_OPTIMIZERS = ("gd", "sgd", "adamw", "muon", "sam")
FINAL = 0.1
"""Share of a series' recorded steps, at its end, that a final value is the mean of."""

_TABLES = Path(__file__).parents[2] / "data" / "paper"


@dataclass(frozen=True)
class Study:
    """Runs of one optimizer that share all settings but learning rate and seed.

    Attributes:
        label: optimizer, with dataset, model and more where several studies share it.
        optimizer: its name.
        loss: the training loss's table.
        runs: those that did not fail or diverge.
        dropped: how many did.
    """

    label: str
    optimizer: str
    loss: dict[str, Any]
    runs: tuple[Run, ...]
    dropped: int

    @property
    def context(self) -> str:
        """What tells apart studies that may be compared with each other: dataset, model and steps."""
        spec = self.runs[0].spec
        return json.dumps([spec.get(key) for key in ("dataset", "model", "steps")], sort_keys=True)

    @property
    def left_out(self) -> str:
        """A clause on the runs that were dropped; empty where there are none."""
        return f"; {self.dropped} failed or diverged runs left out" if self.dropped else ""


def studies(runs: Iterable[Run], loss: str | None = "ce") -> list[Study]:
    """The studies with a training loss of that name (None for any), in the order they come."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if loss is None or run.setting("loss.name") == loss:
            groups.setdefault(_key(run), []).append(run)
    found = []
    for members in groups.values():
        kept = tuple(run for run in members if run.status not in ENDED_BADLY)
        if kept:
            found.append((members, kept))
    names = [members[0].setting("optimizer.name") or "unnamed optimizer" for members, _ in found]
    labels = [_label(members[0], name, names) for (members, _), name in zip(found, names, strict=True)]
    for index, label in enumerate(labels):
        if labels.count(label) > 1:
            labels[index] = f"{label} {json.dumps(_further(found[index][0][0]), sort_keys=True)}"
    return [
        Study(label, name, dict(members[0].spec.get("loss", {})), kept, len(members) - len(kept))
        for (members, kept), name, label in zip(found, names, labels, strict=True)
    ]


def _further(run: Run) -> dict[str, Any]:
    optimizer = {key: value for key, value in run.spec.get("optimizer", {}).items() if key not in ("name", "lr")}
    return {"optimizer": optimizer, "loss": run.spec.get("loss"), "steps": run.spec.get("steps")}


def _key(run: Run) -> str:
    shared = {key: value for key, value in run.spec.items() if key not in ("seed", "probes", "device")}
    shared["optimizer"] = {key: value for key, value in run.spec.get("optimizer", {}).items() if key != "lr"}
    return json.dumps(shared, sort_keys=True, default=str)


def _label(run: Run, name: str, names: list[str]) -> str:
    if names.count(name) == 1:
        return name
    return f"{name} on {run.setting('dataset.name')} with {run.setting('model.name')}"


def missing_optimizers(found: Sequence[Study]) -> str:
    """The paper's optimizers that have no study, as a sentence; empty where all are there."""
    names = [name for name in PAPER_OPTIMIZERS if name not in {study.optimizer for study in found}]
    return f"no runs of {', '.join(names)} with cross-entropy" if names else ""


def final(run: Run, name: str, split: str = "train") -> float:
    """Mean of a metric over the last tenth of the steps it has.

    Raises:
        SettingError: it was not recorded, or has no value.
    """
    values = run.metric(name, split).to_numpy(np.float64)
    if not len(values):
        raise SettingError(f"metric {name!r}: run {run.id} has no value of it")
    return float(values[-max(1, round(FINAL * len(values))) :].mean())


def by_rate(study: Study, values: Sequence[float]) -> dict[float, list[float]]:
    """One value per run, by learning rate."""
    grouped: dict[float, list[float]] = {}
    for run, value in zip(study.runs, values, strict=True):
        grouped.setdefault(run.setting("optimizer.lr"), []).append(value)
    return grouped


def coupling_fields(study: Study, x: str, y: str, split: str) -> tuple[Outcome, str, dict[str, Any]]:
    """Outcome, reason and numbers of the coupling in a study; inconclusive where a series is not to be had."""
    fields: dict[str, Any] = {
        "estimand": f"level rho_seed of log {x} ({split}) and log {y}",
        "runs": len(study.runs),
        "window": "all recorded steps",
    }
    try:
        result = couple(study.runs, x, y, split, within=("lr",))
    except SettingError as error:
        return Outcome.INCONCLUSIVE, str(error) + study.left_out, fields
    fields |= {"effect": result.estimate, "interval": result.interval, "pvalue": result.pvalue, "runs": result.runs}
    reason = result.reason
    if len(result.descriptive):
        reason += (
            f" (descriptive: Pearson r {result.descriptive['r'].mean():.2f}; of logarithms with the own seed "
            f"{result.own_seed_r:.2f}, with other seeds {result.other_seed_r:.2f})"
        )
    return result.outcome, reason + study.left_out, fields


@cache
def paper_table(name: str) -> tuple[dict[str, str], ...]:
    """Rows of one of the paper's tables; none where the package was installed without them."""
    path = _TABLES / f"{name}.csv"
    if not path.is_file():
        return ()
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def paper_number(table: str, column: str, **keys: str) -> float | None:
    """A published number; None where the paper has none."""
    for row in paper_table(table):
        if all(row.get(key) == value for key, value in keys.items()):
            return float(row[column])
    return None
