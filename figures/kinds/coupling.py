"""Is a run's ECE closer to its own sharpness than to that of another seed?"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.coupling import CouplingResult, couple
from analysis.panel import WITHIN, Source, read_panel
from analysis.permutation import centre
from analysis.plugins import Count, SettingError
from analysis.run import Run
from figures.curves import empty, entitle, label, wrapped
from figures.kinds import Drawing, Kind
from figures.records import groups, optimizer
from figures.style import OKABE_ITO, colour

ALONE = "Each verdict is that of its test alone, before Holm's adjustment over all tests of the claim."


class Coupling(Kind):
    """First panel: each run's r with its own seed against its mean r with other seeds. Then a permutation null each.

    Runs near the diagonal correlate with another seed's curve as well as with their own: a shape that all runs
    share, not a coupling. The null is rho_seed with the pairing of runs permuted within step sizes.

    Attributes:
        x: metric or recorded scalar.
        y: the same.
        split: sample of the metrics.
        draws: pairings drawn for the histogram; the p-value is that of `analysis.coupling.couple`.
    """

    x: str = "ece"
    y: str = "lambda_max"
    split: Literal["train", "test", "validation"] = "train"
    draws: Count = 2000

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`."""
        grouped = {name: members for name, members in groups(runs).items() if len(members) > 1}
        found = {name: couple(members, self.x, self.y, self.split) for name, members in grouped.items()}
        found = {name: result for name, result in found.items() if result.association}
        if not found:
            raise SettingError("coupling: no optimizer has two runs or more of a step size that can be compared")
        used = [run for name in found for run in grouped[name]]
        figure, axes = wrapped(1 + len(found), columns=4)
        self._own_against_other(axes[0], {name: (grouped[name], result) for name, result in found.items()})
        for cell, (name, result) in zip(axes[1:], found.items(), strict=True):
            self._null(cell, name, grouped[name], result)
        dots = [line for line in axes[0].lines if line.get_label() in found]
        figure.legend(handles=dots, loc="outside lower center", ncols=6, handlelength=0.5, columnspacing=1.2)
        heading = entitle(figure, f"Coupling of {label(self.x)} ({self.split}) with {label(self.y)}", used)
        words = [
            f"{name}: r with the own seed {result.own_seed_r:.2f}, with other seeds {result.other_seed_r:.2f}; "
            f"rho_seed {result.estimate:.2f}, p = {result.pvalue:.3g}, {result.verdict}."
            for name, result in found.items()
        ]
        return {self.split: Drawing(figure, heading, f"{heading}. {' '.join(words)} {ALONE}", used)}

    def _own_against_other(self, axes: Axes, found: dict[str, tuple[list[Run], CouplingResult]]) -> None:
        axes.plot([-1, 1], [-1, 1], color=OKABE_ITO["black"], linewidth=0.6, linestyle=":")
        for name, (members, result) in found.items():
            table = result.descriptive
            tone = colour(optimizer(members[0]))
            axes.plot(table["r_log_other"], table["r_log"], ".", color=tone, markersize=4, label=name)
        axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
        axes.set_xlabel("r with other seeds")
        axes.set_ylabel("r with the own seed")
        axes.set_title("descriptive")

    def _null(self, axes: Axes, name: str, members: list[Run], result: CouplingResult) -> None:
        draws = null_of_rho(members, self.x, self.y, self.split, self.draws)
        estimate, pvalue = result.estimate, result.pvalue
        if estimate is None or pvalue is None:
            empty(axes, result.reason)
            return
        axes.hist(draws, bins=30, color="#bdbdbd", edgecolor="none")
        axes.axvline(estimate, color=colour(optimizer(members[0])), linewidth=1.4)
        axes.set_title(f"{name}: p = {pvalue:.2g}")
        axes.set_xlabel("level $\\rho_{seed}$")
        axes.set_yticks([])
        axes.xaxis.set_major_locator(MaxNLocator(3))


def null_of_rho(runs: Sequence[Run], x: str, y: str, split: str, draws: int) -> NDArray[np.float64]:
    """Level rho_seed of ``draws`` random pairings of runs within their strata, drawn with a fixed seed."""
    panel = read_panel(Source(runs, split, WITHIN), (x, y), "all")
    a, b = (centre(panel.logs[name], panel.grouping) for name in (x, y))
    scale_of = np.linalg.norm(a) * np.linalg.norm(b)
    generator = np.random.default_rng(0)
    total = np.zeros(draws)
    for rows in panel.grouping.members:
        products = a[rows] @ b[rows].T
        pairings = generator.random((draws, len(rows))).argsort(axis=1)
        total += products[np.arange(len(rows)), pairings].sum(axis=1)
    return np.asarray(total / scale_of)
