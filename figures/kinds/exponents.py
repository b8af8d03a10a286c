"""ECE and sharpness against the exponential margin moment Q, and their exponents."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.exponents import exponents
from analysis.plugins import SettingError
from analysis.run import Run
from figures.curves import entitle, label, panels
from figures.kinds import Drawing, Kind
from figures.records import by_rate, groups, mean, optimizer, series
from figures.style import OKABE_ITO, logarithmic, shades


class Exponents(Kind):
    """log ECE (above) and log sharpness (below) against log Q, means over seeds; optimizers across.

    A quantity that is proportional to Q moves along the dotted slope of 1. Over each panel stands the mean over runs
    of the fitted exponent alpha with its 95% interval.

    Attributes:
        window: steps that are fitted, see `analysis.exponents.exponents`.
    """

    window: Literal["all", "before_peak", "interpolating"] = "all"

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`."""
        shown = {
            name: members
            for name, members in groups(runs).items()
            if all(len(series(run, metric)) for run in members for metric in ("exp_moment", "lambda_max"))
        }
        if not shown:
            raise SettingError("exponents: no optimizer has recorded both margins and sharpness in all its runs")
        used = [run for members in shown.values() for run in members]
        figure, grid = panels(2, len(shown), height=1.9, sharex="col", sharey="row")
        words = []
        for column, (name, members) in zip(grid.T, shown.items(), strict=True):
            column[0].set_title(name, pad=22)
            result = exponents(members, window=self.window)
            texts = [f"$\\alpha$ = {s.mean:.2f}\n[{s.interval[0]:.2f}, {s.interval[1]:.2f}]" for s in result.slopes[:2]]
            for axes, metric, text in zip(column, ("ece", "lambda_max"), texts or ["", ""], strict=True):
                self._panel(axes, metric, members)
                axes.annotate(text, (0.5, 1.02), xycoords="axes fraction", fontsize=6.5, ha="center")
            column[1].set_xlabel("Q (train)")
            words.append(f"{name}: {result.summary()}")
        for axes, metric in zip(grid[:, 0], ("ece", "lambda_max"), strict=True):
            axes.set_ylabel(label(metric))
        heading = entitle(figure, "Exponents in Q", used)
        text = f"{heading}. Training ECE and sharpness against Q on logarithmic axes. {' '.join(words)}"
        return {"train": Drawing(figure, heading, " ".join(text.split()), used)}

    def _panel(self, axes: Axes, metric: str, runs: list[Run]) -> None:
        rates = by_rate(runs)
        paths = []
        for members, tone in zip(rates.values(), shades(optimizer(runs[0]), len(rates)), strict=True):
            both = [mean([series(run, name) for run in members]) for name in ("exp_moment", metric)]
            paths.append(pd.concat(both, axis=1, join="inner").to_numpy())
            axes.plot(*paths[-1].T, color=tone, linewidth=0.8)
        logarithmic(axes, "x")
        logarithmic(axes)
        logs = np.log(np.concatenate(paths))
        ends = np.array([logs[:, 0].min(), logs[:, 0].max()])
        heights = logs[:, 1].mean() + ends - logs[:, 0].mean()
        # An artist of its own does not stretch the axes.
        slope = Line2D(np.exp(ends), np.exp(heights), color=OKABE_ITO["black"], linewidth=0.6, linestyle=":")
        axes.add_artist(slope)
