"""Runs with CalMO beside their twins with plain cross-entropy."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.claims._studies import ENDED_BADLY
from analysis.plugins import SettingError
from analysis.run import Run


@dataclass(frozen=True)
class Twins:
    """Pairs of runs that differ in the training loss only.

    Attributes:
        optimizer: name of their optimizer.
        pairs: (CalMO, cross-entropy), one for each learning rate and seed that both have.
    """

    optimizer: str
    pairs: tuple[tuple[Run, Run], ...]

    def gains(self, value: Callable[[Run], float]) -> list[float]:
        """value(cross-entropy) - value(CalMO) of each pair.

        Raises:
            SettingError: a run does not have it.
        """
        return [value(plain) - value(calmo) for calmo, plain in self.pairs]


def twins(runs: Iterable[Run]) -> list[Twins]:
    """All pairs, by optimizer. CalMO is the loss with both of its terms; with one alone it is Flat or Rob."""
    plain: dict[str, Run] = {}
    calmo: dict[str, Run] = {}
    for run in runs:
        if run.status in ENDED_BADLY:
            continue
        if run.setting("loss.name") == "ce":
            plain[_key(run)] = run
        elif run.setting("loss.name") == "calmo" and run.setting("loss.lambda_r") and run.setting("loss.lambda_s"):
            calmo[_key(run)] = run
    pairs: dict[str, list[tuple[Run, Run]]] = {}
    for key, run in calmo.items():
        if key in plain:
            pairs.setdefault(str(run.setting("optimizer.name")), []).append((run, plain[key]))
    return [Twins(optimizer, tuple(found)) for optimizer, found in pairs.items()]


def _key(run: Run) -> str:
    shared = {key: value for key, value in run.spec.items() if key not in ("loss", "probes", "device")}
    return json.dumps(shared, sort_keys=True, default=str)


def at_best(run: Run, name: str) -> float:
    """A test metric at the step of least validation loss; at its last step where there is no validation split.

    Raises:
        SettingError: it was not recorded.
    """
    values = run.metric(name, "test").dropna()
    for losses in _validation_losses(run):
        shared = losses[losses.index.isin(values.index) & np.isfinite(losses.to_numpy())]
        if len(shared):
            return float(values[values.index == shared.idxmin()].iloc[0])
    if not len(values):
        raise SettingError(f"metric {name!r}: run {run.id} has no value of it")
    return float(values.iloc[-1])


def _validation_losses(run: Run) -> Iterator["pd.Series[float]"]:
    for name in ("loss_validation", "nll"):
        try:
            yield run.metric(name, "validation")
        except SettingError:
            continue
