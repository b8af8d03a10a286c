"""Axes and curves that several kinds of figures share."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.run import Run
from figures.records import scale, series, thin
from figures.style import COLUMN_WIDTH, LETTER, PAGE_WIDTH

LABELS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "ece": "ECE",
    "kce": "KCE",
    "lambda_max": "GN sharpness",
    "batch_sharpness": "batch sharpness",
    "exp_moment": "Q",
}


def label(metric: str, split: str = "") -> str:
    """How a quantity is called on an axis, such as "ECE (test)"."""
    name = LABELS.get(metric, metric.replace("_", " "))
    return f"{name} ({split})" if split else name


def panels(rows: int, columns: int, height: float = 1.6, **sharing: Any) -> tuple[Figure, NDArray[Any]]:
    """A figure of equal panels, one column of a paper wide for one panel, else two; axes [rows, columns]."""
    width = PAGE_WIDTH if columns > 1 else COLUMN_WIDTH
    figure = Figure(figsize=(width, height * rows + 0.7), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **sharing)


def wrapped(count: int, height: float = 1.9, columns: int = 3, **sharing: Any) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels in rows of at most ``columns``; the rest of the last row stays empty."""
    columns = min(columns, count)
    figure, grid = panels(-(-count // columns), columns, height, **sharing)
    axes = list(grid.ravel())
    for spare in axes[count:]:
        spare.remove()
    for above in axes[max(0, count - columns) : count]:
        above.tick_params(labelbottom=True)
    return figure, axes[:count]


def entitle(figure: Figure, what: str, runs: Sequence[Run]) -> str:
    """Head a figure with what it shows and, below, the data set and scale; returns both as one line."""
    figure.suptitle("\n".join([*fitted(figure, what), *fitted(figure, scale(runs))]))
    return f"{what}: {scale(runs)}"


def fitted(figure: Figure, text: str) -> list[str]:
    """A title in lines that are no wider than the figure."""
    return wrap(text, int(figure.get_figwidth() / LETTER))


def settle(figure: Figure) -> None:
    """Solve for the layout now and keep it: matplotlib would solve it anew, and draw twice, for each file written."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def seed_band(axes: Axes, runs: Sequence[Run], metric: str, split: str, points: int, **look: Any) -> pd.DataFrame:
    """Mean over the runs, and a band of one standard deviation (ddof 1), not below the least run, of several.

    Returns:
        Columns mean and std over step; empty where the runs did not record it.
    """
    recorded = [one for one in (series(run, metric, split) for run in runs) if len(one)]
    if not recorded:
        return pd.DataFrame({"mean": [], "std": []})
    table = pd.concat(recorded, axis=1, join="inner")
    found = pd.DataFrame({"mean": table.mean(axis=1), "std": table.std(axis=1, ddof=1)})
    # A band below every seed would reach values that cannot be, such as a sharpness below zero.
    low = (found["mean"] - found["std"]).clip(lower=table.min(axis=1))
    middle = thin(found["mean"], points)
    axes.plot(middle.index.to_numpy(), middle.to_numpy(), linewidth=1.1, **look)
    if len(recorded) > 1:
        high = (found["mean"] + found["std"]).loc[middle.index].to_numpy()
        steps, bottom = middle.index.to_numpy(), low.loc[middle.index].to_numpy()
        axes.fill_between(steps, bottom, high, color=look.get("color"), alpha=0.2, linewidth=0)
    return found


def empty(axes: Axes, words: str) -> None:
    """Say in a panel why it has nothing to show."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, fontsize=7)


def square_root_of(count: NDArray[Any]) -> NDArray[np.float64]:
    """Marker areas that grow with the count, 4 to 40 points squared."""
    return np.asarray(4 + 36 * np.sqrt(count / max(1, count.max())))
