"""Reliability diagrams: accuracy against confidence."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from analysis import calibration
from analysis.plugins import Count, SettingError
from analysis.run import Run
from figures.curves import entitle, panels, square_root_of
from figures.kinds import Drawing, Kind
from figures.records import by_rate, common_steps, groups, mean, optimizer, pooled, series, slug
from figures.style import OKABE_ITO, shades

SPLITS = ("train", "test")


class Reliability(Kind):
    """Accuracy in bins of confidence at the start, at the peak of training ECE and at the end.

    One figure per optimizer, samples of all seeds together; a line below the diagonal is overconfident, and the area
    of a dot grows with the samples in its bin.

    Attributes:
        bins: of equal width.
    """

    bins: Count = 15

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`."""
        made = {}
        for name, members in groups(runs).items():
            recorded = [run for run in members if "examples_train" in run.streams]
            if recorded:
                made[slug(name)] = self._drawing(name, recorded)
        if not made:
            raise SettingError("reliability: no run has recorded the stream examples_train")
        return made

    def _drawing(self, name: str, runs: list[Run]) -> Drawing:
        figure, grid = panels(len(SPLITS), 3, height=2.2, sharex=True, sharey=True)
        rates = by_rate(runs)
        words = []
        for (eta, members), tone in zip(rates.items(), shades(optimizer(runs[0]), len(rates)), strict=True):
            steps = common_steps(members, "examples_train")
            error = mean([series(run, "ece") for run in members])
            peak = int(error.index.to_numpy()[error.argmax()])
            words.append(f"Step size {eta:g}: the mean training ECE of the seeds peaks at step {peak}.")
            for row, split in zip(grid, SPLITS, strict=True):
                if f"examples_{split}" in members[0].streams:
                    for axes, step in zip(row, (int(steps[0]), peak, int(steps[-1])), strict=True):
                        self._line(axes, members, split, step, color=tone, label=f"$\\eta$ = {eta:.3g}")
        for axes, when in zip(grid[0], ("start", "peak of training ECE", "end"), strict=True):
            axes.set_title(when)
        for axes in grid.ravel():
            axes.plot([0, 1], [0, 1], color=OKABE_ITO["black"], linewidth=0.6, linestyle=":")
            axes.set(xlim=(0, 1.02), ylim=(-0.02, 1.02))
        for axes, split in zip(grid[:, 0], SPLITS, strict=True):
            axes.set_ylabel(f"accuracy, {split}")
        for axes in grid[-1]:
            axes.set_xlabel("confidence")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
        heading = entitle(figure, f"Reliability, {name}", runs)
        text = f"{heading}. Accuracy in {self.bins} bins of confidence. {' '.join(words)}"
        return Drawing(figure, heading, text, runs)

    def _line(self, axes: Axes, runs: list[Run], split: str, step: int, **look: str) -> None:
        stream = f"examples_{split}"
        confidence = -np.expm1(pooled(runs, stream, "log_one_minus_confidence", step).astype(np.float64))
        table = calibration.reliability(confidence, pooled(runs, stream, "correct", step), bins=self.bins)
        there = table.count > 0
        axes.plot(table.confidence[there], table.accuracy[there], linewidth=0.8, **look)  # type: ignore[arg-type]
        area = square_root_of(table.count[there])
        axes.scatter(
            table.confidence[there], table.accuracy[there], s=area, color=look["color"], linewidths=0, clip_on=False
        )
