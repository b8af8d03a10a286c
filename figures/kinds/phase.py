"""ECE against sharpness: the path of a training run in the plane of both."""

from collections.abc import Sequence
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.plugins import Count, SettingError
from analysis.run import Run
from figures.curves import entitle, label, wrapped
from figures.kinds import Drawing, Kind
from figures.records import by_rate, groups, mean, optimizer, series, thin
from figures.style import logarithmic, shades

COLUMNS, PER_ROW, ROW = 3, 4, 9
"""Panels side by side, step sizes in a row of a legend, and the height of that row in points."""
SPREAD = ("exp_moment", "exp_moment_predicted", "lambda_max", "hessian_lambda_max", "batch_sharpness")
"""Positive quantities that span decades, on a logarithmic axis also across."""


class Phase(Kind):
    """Paths in the plane of two quantities, start (circle) and end (square) marked; a panel per optimizer.

    A path is the mean over seeds, one for each step size, light to dark.

    Attributes:
        x: metric or recorded scalar across.
        y: the same, up, on a logarithmic axis.
        split: sample of the metrics.
        points: a longer path is thinned for drawing.
    """

    x: str = "ece"
    y: str = "lambda_max"
    split: Literal["train", "test", "validation"] = "train"
    points: Count = 2000

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`."""
        grouped = groups(runs)
        shown = {name: paths for name, members in grouped.items() if (paths := self._paths(members))}
        if not shown:
            raise SettingError(f"phase: no run has recorded both {self.x} and {self.y} at a common step")
        figure, axes = wrapped(len(shown), columns=COLUMNS, sharex=True)
        used: list[Run] = []
        words = []
        for cell, (name, paths) in zip(axes, shown.items(), strict=True):
            members = grouped[name]
            used += members
            self._panel(cell, optimizer(members[0]), paths)
            # Room for the step sizes, which stand between the title and the axes: paths may run anywhere inside.
            cell.set_title(name, pad=4 + ROW * -(-len(paths) // PER_ROW))
            ends = "; ".join(
                f"step size {eta:g} from ({first[0]:.3g}, {first[1]:.3g}) to ({last[0]:.3g}, {last[1]:.3g})"
                for eta, path in paths.items()
                for first, last in [path.to_numpy()[[0, -1]]]
            )
            words.append(f"{name}: {ends}.")
        for cell in axes[-COLUMNS:]:
            cell.set_xlabel(label(self.x, self.split))
        for cell in axes[::COLUMNS]:
            cell.set_ylabel(label(self.y))
        grey = "#595959"
        marks = [
            Line2D([], [], color=grey, marker="o", linestyle="", markersize=4, label="start"),
            Line2D([], [], color=grey, marker="s", linestyle="", markersize=4, label="end"),
            Line2D([], [], color=grey, label="step size $\\eta$, mean over seeds"),
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=3)
        heading = entitle(figure, f"{label(self.x)} against {label(self.y)}", used)
        text = f"{heading}. Paths of (x, y), the mean over seeds. {' '.join(words)}"
        return {self.split: Drawing(figure, heading, text, used)}

    def _paths(self, runs: list[Run]) -> dict[float, pd.DataFrame]:
        paths = {}
        for eta, members in by_rate(runs).items():
            both = [mean([series(run, name, self.split) for run in members]) for name in (self.x, self.y)]
            path = pd.concat(both, axis=1, join="inner")
            if len(path):
                paths[eta] = path
        return paths

    def _panel(self, axes: Axes, name: str, paths: dict[float, pd.DataFrame]) -> None:
        logarithmic(axes)
        if self.x in SPREAD:
            logarithmic(axes, "x")
        for (eta, path), tone in zip(paths.items(), shades(name, len(paths)), strict=True):
            kept = path.loc[thin(path.iloc[:, 1], self.points).index].to_numpy()
            axes.plot(kept[:, 0], kept[:, 1], color=tone, linewidth=0.8, label=f"{eta:.3g}")
            axes.plot(*path.iloc[0], color=tone, marker="o", markersize=4)
            axes.plot(*path.iloc[-1], color=tone, marker="s", markersize=4)
        axes.legend(
            loc="lower center",
            bbox_to_anchor=(0.5, 1),
            ncols=PER_ROW,
            fontsize=6.5,
            handlelength=0.7,
            handletextpad=0.3,
            columnspacing=0.7,
            borderpad=0.1,
            labelspacing=0.2,
        )
