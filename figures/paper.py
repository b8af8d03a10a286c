"""The figures and tables of the paper, as they stand in paper.toml."""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from analysis.plugins import SettingError, validate
from analysis.run import Run
from analysis.runs import Runs
from figures.kinds import KINDS, Kind


class Item(BaseModel):
    """A figure or table of the paper.

    Attributes:
        title: what it shows.
        kind: a file of figures/kinds.
        experiment: the preset whose records it needs.
        select: which of those runs, as for `Runs.select`.
        settings: of the kind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    title: str
    kind: str
    experiment: str
    select: dict[str, Any] = {}
    settings: dict[str, Any] = {}

    def build(self) -> Kind:
        """The kind with the item's settings."""
        return KINDS.build({"name": self.kind, **self.settings}, "settings")

    def runs(self, runs: Sequence[Run]) -> list[Run]:
        """Those of the runs that it shows.

        Raises:
            SettingError: there are none.
        """
        found = list(Runs(runs).select(**self.select))
        if not found:
            wanted = ", ".join(f"{key} = {value!r}" for key, value in self.select.items())
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
