"""How loss, accuracy, calibration, margins and sharpness move with the step."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.plugins import Count, SettingError
from analysis.run import Run
from analysis.summary import edge
from figures.curves import fitted
from figures.kinds import Drawing, Kind
from figures.records import by_rate, groups, mean, optimizer, scale, series, slug, thin
from figures.style import OKABE_ITO, PAGE_WIDTH, logarithmic, shades

SPLITS = ("train", "test")
ROWS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "ece": "ECE (15 bins)",
    "kce": "KCE",
    "margin_quantile": "margin (logits)",
    "lambda_max": "GN sharpness",
}
Dashes = Literal["-"] | tuple[int, tuple[int, int]]
QUANTILES: dict[float, Dashes] = {0.5: "-", 0.1: (0, (3, 1)), 0.01: (0, (1, 1))}
"""Of the margins over samples, with their dashes."""


class Dynamics(Kind):
    """Quantities down, train and test across, step sizes from light to dark; one figure per optimizer.

    A thin line is one seed and a thick one the mean over seeds; margins show the mean only, of three quantiles over
    samples. Dashed beside sharpness are the edges 2/eta, for optimizers that have one. Sharpness is of the training
    loss: the test column shows batch sharpness in its place where that was recorded.

    Attributes:
        points: a longer trajectory is thinned for drawing.
    """

    points: Count = 2000

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`; a drawing for each optimizer."""
        recorded = [run for run in runs if run.last_step >= 0]
        if not recorded:
            raise SettingError("runs: none has recorded a step yet")
        return {slug(name): self._drawing(name, members) for name, members in groups(recorded).items()}

    def _drawing(self, name: str, runs: list[Run]) -> Drawing:
        etas = by_rate(runs)
        tones = dict(zip(etas, shades(optimizer(runs[0]), len(etas)), strict=True))
        # Fixed margins: to solve for them takes as long as all of the drawing.
        figure = Figure(figsize=(PAGE_WIDTH, 7.6))
        figure.subplots_adjust(left=0.09, right=0.985, top=0.93, bottom=0.06, hspace=0.16, wspace=0.14)
        grid = figure.subplots(len(ROWS), len(SPLITS), sharex=True, squeeze=False)
        longest = 0
        for axes, (quantity, label) in zip(grid, ROWS.items(), strict=True):
            axes[0].set_ylabel(label)
            axes[0].yaxis.set_label_coords(-0.13, 0.5)
            for cell, split in zip(axes, SPLITS, strict=True):
                if quantity == "lambda_max" and split != "train":
                    continue
                longest = max(longest, self._cell(cell, quantity, split, runs, tones))
            if quantity != "lambda_max":
                axes[1].sharey(axes[0])
                axes[1].autoscale()
        for cell, split in zip(grid[0], SPLITS, strict=True):
            cell.set_title(split)
        logarithmic(grid[-1][0])
        self._edges(grid[-1][0], runs, tones)
        self._last_cell(grid, runs, tones)
        heading = f"{name}: {scale(runs)}"
        figure.suptitle("\n".join(fitted(figure, heading)), y=0.985)
        notes: tuple[str, ...] = ()
        if longest > self.points:
            notes = (f"trajectories of up to {longest} steps are drawn with about {self.points} of them",)
        return Drawing(figure, heading, _describe(name, runs), runs, notes=notes)

    def _cell(self, axes: Axes, quantity: str, split: str, runs: list[Run], tones: dict[float, str]) -> int:
        """Draw one quantity; returns the length of its longest trajectory."""
        longest = 0
        for eta, members in by_rate(runs).items():
            tone = tones[eta]
            if quantity == "margin_quantile":
                for q, dashes in QUANTILES.items():
                    middle = mean([series(run, quantity, split, q=q) for run in members])
                    self._line(axes, middle, color=tone, linestyle=dashes, linewidth=0.9)
                    longest = max(longest, len(middle))
                continue
            seeds = [series(run, quantity, split) for run in members]
            longest = max(longest, *map(len, seeds))
            if len(seeds) > 1:
                for one in seeds:
                    self._line(axes, one, color=tone, linewidth=0.4, alpha=0.45)
            self._line(axes, mean(seeds), color=tone, linewidth=1.1)
        if quantity == "margin_quantile":
            axes.axhline(0, color=OKABE_ITO["black"], linewidth=0.5)
        return longest

    def _line(self, axes: Axes, values: "pd.Series[float]", **look: Any) -> None:
        if len(values):
            drawn = thin(values, self.points)
            axes.plot(drawn.index.to_numpy(), drawn.to_numpy(), **look)

    def _edges(self, axes: Axes, runs: list[Run], tones: dict[float, str]) -> None:
        for eta, members in by_rate(runs).items():
            if np.isfinite(edge(members[0])):
                axes.axhline(edge(members[0]), color=tones[eta], linestyle="--", linewidth=0.8, label="_edge")

    def _last_cell(self, grid: "np.ndarray[Any, Any]", runs: list[Run], tones: dict[float, str]) -> None:
        """Batch sharpness if recorded, or the legend; the legend goes below the figure otherwise."""
        cell: Axes = grid[-1][1]
        handles = [Line2D([], [], color=tone, label=f"$\\eta$ = {eta:.3g}") for eta, tone in tones.items()]
        grey = "#595959"
        handles += [
            Line2D([], [], color=grey, linestyle=dashes, linewidth=0.9, label=f"margin, {_percent(q)}")
            for q, dashes in QUANTILES.items()
        ]
        if any(np.isfinite(edge(run)) for run in runs):
            handles.append(Line2D([], [], color=grey, linestyle="--", linewidth=0.8, label="edge 2/$\\eta$"))
        grid[-1][0].set_xlabel("step")
        if any(len(series(run, "batch_sharpness")) for run in runs):
            self._cell(cell, "batch_sharpness", "train", runs, tones)
            logarithmic(cell)
            self._edges(cell, runs, tones)
            cell.set_ylabel("batch sharpness")
            cell.set_xlabel("step")
            cell.figure.subplots_adjust(bottom=0.12)
            cell.figure.legend(handles=handles, loc="lower center", ncols=4)
            return
        cell.set_axis_off()
        # Step sizes in the first column, line styles in the second: matplotlib fills columns evenly.
        count = max(len(tones), len(handles) - len(tones))
        blank = Line2D([], [], linestyle="", label=" ")
        first, second = (
            [*some, *[blank] * (count - len(some))] for some in (handles[: len(tones)], handles[len(tones) :])
        )
        cell.legend(
            handles=first + second,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.7),
            ncols=2,
            title="thin: a seed; thick: the mean",
        )
        grid[-2][1].tick_params(labelbottom=True)
        grid[-2][1].set_xlabel("step")


def _percent(q: float) -> str:
    return "median" if q == 0.5 else f"{100 * q:g}% quantile"


def _describe(name: str, runs: list[Run]) -> str:
    """In words, with the peaks of the middle seed's run of each step size."""
    words = [
        f"{name}, {scale(runs)}: loss, accuracy, ECE, KCE, quantiles of the margin and Gauss-Newton sharpness "
        f"against the step, for {len(runs)} runs; train on the left, test on the right."
    ]
    for eta, members in by_rate(runs).items():
        parts = []
        for quantity, label in {"ece": "training ECE", "lambda_max": "sharpness"}.items():
            middle = mean([series(run, quantity) for run in members])
            if len(middle):
                peak = f"peaks at {middle.max():.3g} at step {middle.idxmax()}"
                parts.append(f"{label} {peak} and ends at {middle.iloc[-1]:.3g}")
        if parts:
            words.append(f"At step size {eta:g}, the mean {', the mean '.join(parts)}.")
    return " ".join(words)
