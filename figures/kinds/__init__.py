"""Kinds of figures, one file each; the folder is the list."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from analysis.plugins import Plugin, Registry
from analysis.run import Run


@dataclass(frozen=True)
class Drawing:
    """A figure and what is behind it.

    Attributes:
        figure: drawn in the house style.
        title: its heading, with data set and scale.
        description: what it shows, in words, for those who cannot see it.
        runs: the records it shows.
        table: the numbers, where the figure is one of numbers.
        notes: what was done to the data for drawing only, such as thinning.
    """

    figure: Figure
    title: str
    description: str
    runs: Sequence[Run]
    table: pd.DataFrame | None = None
    notes: tuple[str, ...] = field(default=())


class Kind(Plugin):
    """Settings of a kind of figure."""

    @abstractmethod
    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """Draw inside the house style.

        Returns:
            Drawings by a short name that can be part of a file's name, such as one per optimizer.

        Raises:
            SettingError: the runs lack what the figure shows.
        """


KINDS: Registry[Kind] = Registry("figures.kinds", Kind)
