"""The figures and tables of the paper, as they stand in paper.toml."""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from analysis.methods import method
from analysis.plugins import SettingError, validate
from analysis.run import Run
from analysis.runs import Runs
from figures.kinds import KINDS, Kind

SCALES = ("smoke", "laptop", "paper")
"""Digits in minutes; a part of the paper's data in hours on two cores; the paper's sizes, for a GPU."""

STAND_INS = {"mlp_dynamics_cifar100_smoke": "mlp_dynamics_smoke"}
"""Presets that are another's, so that nothing is run twice: digits stand in for both data sets of the paper."""


class Item(BaseModel):
    """A figure or table of the paper.

    Attributes:
        title: what it shows.
        kind: a file of figures/kinds.
        experiment: the presets whose records it needs, one for each scale.
        data: what the paper measured it on.
        select: which of those runs, as for `Runs.select`.
        methods: which of those, by the name of their loss in the paper's tables; all if empty.
        settings: of the kind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    title: str
    kind: str
    experiment: str
    data: str = "CIFAR-10"
    select: dict[str, Any] = {}
    methods: list[str] = []
    settings: dict[str, Any] = {}

    def build(self) -> Kind:
        """The kind with the item's settings."""
        return KINDS.build({"name": self.kind, **self.settings}, "settings")

    def preset(self, scale: str) -> str:
        """The name of the experiment whose records it needs at a scale.

        Raises:
            SettingError: there is no such scale.
        """
        if scale not in SCALES:
            raise SettingError(f"scale = {scale!r}: there is no such scale; accepted: {', '.join(SCALES)}")
        name = f"{self.experiment}_{scale}"
        return STAND_INS.get(name, name)

    def runs(self, runs: Sequence[Run]) -> list[Run]:
        """Those of the runs that it shows, recorded or planned.

        Raises:
            SettingError: there are none.
        """
        found = [run for run in Runs(runs).select(**self.select) if not self.methods or method(run) in self.methods]
        if not found:
            conditions = {**self.select, **({"methods": self.methods} if self.methods else {})}
            wanted = ", ".join(f"{key} = {value!r}" for key, value in conditions.items())
            raise SettingError(
                f"{self.title}: needs runs with {wanted}, and there are none; "
                f"the experiment {self.experiment} makes them"
            )
        return found


@cache
def items() -> dict[str, Item]:
    """All figures and tables by name: fig1, ..., figA20, table1, ..., tableA2."""
    table = tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))
    return {name: validate(Item, row, name) for name, row in table.items()}


def choose(names: Sequence[str]) -> dict[str, Item]:
    """The items of these names, in the paper's order; ``all`` stands for every one.

    Raises:
        SettingError: there is no such item.
    """
    for name in names:
        if name != "all" and name not in items():
            raise SettingError(f"item = {name!r}: the paper has no such item; accepted: all, {', '.join(items())}")
    return {name: item for name, item in items().items() if name in names or "all" in names}


def spelled(name: str) -> str:
    """How the paper calls an item: "Figure A3" for ``figA3``."""
    return name.replace("fig", "Figure ").replace("table", "Table ")
