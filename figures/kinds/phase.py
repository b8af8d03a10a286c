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
        shown = {name: self._paths(members) for name, members in groups(runs).items()}
        shown = {name: paths for name, paths in shown.items() if paths}
        if not shown:
            raise SettingError(f"phase: no run has recorded both {self.x} and {self.y} at a common step")
        figure, axes = wrapped(len(shown), sharex=True)
        used: list[Run] = []
        words = []
        for cell, (name, paths) in zip(axes, shown.items(), strict=True):
            members = groups(runs)[name]
            used += members
            self._panel(cell, optimizer(members[0]), paths)
            cell.set_title(name)
            ends = "; ".join(
                f"step size {eta:g} from ({first[0]:.3g}, {first[1]:.3g}) to ({last[0]:.3g}, {last[1]:.3g})"
                for eta, path in paths.items()
                for first, last in [path.to_numpy()[[0, -1]]]
            )
            words.append(f"{name}: {ends}.")
        for cell in axes:
            cell.set_xlabel(label(self.x, self.split))
        axes[0].set_ylabel(label(self.y))
        marks = [
            Line2D([], [], color="#595959", marker=marker, linestyle="", markersize=4, label=word)
            for marker, word in (("o", "start"), ("s", "end"))
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=2, frameon=False)
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
        for (eta, path), tone in zip(paths.items(), shades(name, len(paths)), strict=True):
            kept = path.loc[thin(path.iloc[:, 1], self.points).index].to_numpy()
            axes.plot(kept[:, 0], kept[:, 1], color=tone, linewidth=0.8, label=f"{eta:g}")
            axes.plot(*path.iloc[0], color=tone, marker="o", markersize=4)
            axes.plot(*path.iloc[-1], color=tone, marker="s", markersize=4)
        axes.legend(title="$\\eta$", fontsize=6, title_fontsize=6, handlelength=1)
