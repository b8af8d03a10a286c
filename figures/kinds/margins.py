"""The distribution of margins over time."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from analysis.plugins import Count, SettingError
from analysis.run import Run
from figures.curves import entitle, panels
from figures.kinds import Drawing, Kind
from figures.records import by_rate, common_steps, groups, optimizer, slug
from figures.style import OKABE_ITO, colour

LEVELS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
SPLITS = ("train", "test")


class Margins(Kind):
    """Bands that hold 98%, 80% and 50% of the true margins, and their median; samples of all seeds together.

    One figure per optimizer: step sizes across, train and test down. Below zero a sample is wrong.

    Attributes:
        points: steps that are drawn, evenly spread over the recorded ones.
    """

    points: Count = 150

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`."""
        made = {}
        for name, members in groups(runs).items():
            columns = {eta: some for eta, some in by_rate(members).items() if len(common_steps(some, "examples_train"))}
            if columns:
                made[slug(name)] = self._drawing(name, columns)
        if not made:
            raise SettingError("margins: no run has recorded the stream examples_train")
        return made

    def _drawing(self, name: str, columns: dict[float, list[Run]]) -> Drawing:
        figure, grid = panels(len(SPLITS), len(columns), sharex=True, sharey=True)
        used = [run for members in columns.values() for run in members]
        words = []
        for column, (eta, members) in zip(grid.T, columns.items(), strict=True):
            column[0].set_title(f"$\\eta$ = {eta:.3g}")
            column[-1].set_xlabel("step")
            for axes, split in zip(column, SPLITS, strict=True):
                steps, levels = self.quantiles(members, split)
                if not len(steps):
                    continue
                self._bands(axes, steps, levels, colour(optimizer(members[0])))
                words.append(
                    f"Step size {eta:g}, {split}: at step {steps[-1]} the median is {levels[3, -1]:.3g} and 1% of "
                    f"samples lie below {levels[0, -1]:.3g}."
                )
        for axes, split in zip(grid[:, 0], SPLITS, strict=True):
            axes.set_ylabel(f"margin, {split} (logits)")
        heading = entitle(figure, f"Margins, {name}", used)
        return Drawing(figure, heading, f"{heading}. {' '.join(words)}", used)

    def quantiles(self, runs: Sequence[Run], split: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps drawn, and the quantiles `LEVELS` [7, steps] of the margins of all runs together."""
        steps = common_steps(runs, f"examples_{split}")
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(self.points, len(steps))).round().astype(int))]
        if not len(steps):
            return steps, np.empty((len(LEVELS), 0))
        stacked = np.concatenate([run.rows(f"examples_{split}", "margin", steps) for run in runs], axis=1)
        return steps, np.quantile(stacked.astype(np.float64), LEVELS, axis=1)

    def _bands(self, axes: Axes, steps: NDArray[np.int64], levels: NDArray[np.float64], tone: str) -> None:
        for low, high, alpha in ((0, 6, 0.15), (1, 5, 0.25), (2, 4, 0.35)):
            axes.fill_between(steps, levels[low], levels[high], color=tone, alpha=alpha, linewidth=0)
        axes.plot(steps, levels[3], color=tone, linewidth=1.2)
        axes.axhline(0, color=OKABE_ITO["black"], linewidth=0.5)
