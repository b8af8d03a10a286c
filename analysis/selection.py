"""Model selection: from which runs, and at which recorded step, a value is read.

The paper reports values at the step of least validation loss (its section 5). Nothing here looks at test samples.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.plugins import SettingError
from analysis.run import Run

Rule = Literal["best", "last"]
"""The step of least validation loss, or the last one."""

RECORDED_AS_CROSS_ENTROPY = ("ce", "calmo", "mixup")
"""Training losses beside which loss_validation is plain cross-entropy: those that need more than the logits."""

ENDED_BADLY = ("failed", "diverged")
"""Statuses of runs from which nothing is read."""

WORDS = {"best": "step of least validation loss", "last": "last step"}


class Selection(NamedTuple):
    """A step, and the rule that led to it.

    Attributes:
        step: updates made before it.
        rule: "last" also where "best" was asked for and no validation loss was recorded at any of the steps.
    """

    step: int
    rule: Rule


def select(run: Run, steps: Sequence[int] | NDArray[np.int64], rule: Rule = "best") -> Selection:
    """One of these steps: that of least cross-entropy on validation, the earliest of several, or the last.

    Cross-entropy whatever the training loss is, so that methods are chosen alike. Without a validation split "best"
    is the last step too, and says so.

    Raises:
        SettingError: no steps, or a rule that does not exist.
    """
    if rule not in WORDS:
        raise SettingError(f"rule = {rule!r}; accepted: 'best', 'last'")
    if not len(steps):
        raise SettingError(f"run {run.id}: no recorded step to choose from")
    losses = validation_loss(run) if rule == "best" else pd.Series(dtype=float)
    losses = losses.loc[losses.index.isin(steps)]
    if not len(losses):
        return Selection(int(max(steps)), "last")
    return Selection(int(losses.index.to_numpy()[losses.argmin()]), "best")


def read(run: Run, name: str, split: str = "test", rule: Rule = "best") -> tuple[float, Selection]:
    """A metric (see `Run.metric`) at the selected one of the steps that have it, with that selection.

    Where the split's samples were recorded more rarely than its scalars, only their steps count: accuracy and ECE are
    then those of one network.

    Raises:
        SettingError: the run has no value of it.
    """
    values = run.metric(name, split)
    stream = f"examples_{split}"
    if stream in run.streams:
        shared = values.loc[values.index.isin(run.steps(stream))]
        values = shared if len(shared) else values
    if not len(values):
        raise SettingError(f"metric {name!r}, split {split!r}: run {run.id} has no value of it")
    selection = select(run, values.index.to_numpy(), rule)
    return float(values.loc[selection.step]), selection


def validation_loss(run: Run) -> "pd.Series[float]":
    """Mean cross-entropy on the validation split, where it is finite; empty where there is no such split.

    It is the recorded loss where that is cross-entropy, and computed from the validation samples where the training
    loss is another function of the logits, such as label smoothing.
    """
    recorded = ["loss_validation"] if run.setting("loss.name") in RECORDED_AS_CROSS_ENTROPY else []
    for name in [*recorded, "nll"]:
        try:
            values: pd.Series[float] = run.metric(name, "validation")
        except SettingError:
            continue
        finite = values.loc[np.isfinite(values)]
        if len(finite):
            return finite
    return pd.Series(dtype=float)


def rule_of(selections: Iterable[Selection]) -> str:
    """The rule that was applied: "best", "last", "best or last" where runs differ, "" where there are none."""
    found = {selection.rule for selection in selections}
    return " or ".join(rule for rule in WORDS if rule in found)


def window(selections: Iterable[Selection]) -> str:
    """The same in the words of a verdict's window."""
    found = {selection.rule for selection in selections}
    words = [WORDS[rule] if rule == "best" else "last step, no validation loss" for rule in WORDS if rule in found]
    return " or ".join(words)
