"""What is lost with the steep directions: BulkSGD beside SGD."""

from collections.abc import Sequence

from analysis.plugins import Count, SettingError
from analysis.run import Run
from analysis.summary import edge
from figures.curves import entitle, label, panels, seed_band
from figures.kinds import Drawing, Kind
from figures.records import by_rate, groups, optimizer
from figures.style import logarithmic, shades

ROWS = ("loss", "ece", "lambda_max")


class Bulk(Kind):
    """Training loss, ECE and sharpness of SGD and of BulkSGD for each number of directions that it projects off.

    A line is the mean over seeds, its band one standard deviation; step sizes from light to dark, with their edges
    2/eta dashed.

    Attributes:
        points: a longer trajectory is thinned for drawing.
    """

    points: Count = 2000

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`."""
        shown = groups(run for run in runs if optimizer(run) in ("sgd", "bulk_sgd"))
        if not any(optimizer(run) == "bulk_sgd" for members in shown.values() for run in members):
            raise SettingError("bulk: there is no run with the optimizer bulk_sgd")
        shown = dict(sorted(shown.items(), key=lambda item: optimizer(item[1][0]) == "bulk_sgd"))
        used = [run for members in shown.values() for run in members]
        figure, grid = panels(len(ROWS), len(shown), height=1.4, sharex=True, sharey="row")
        words = []
        for column, (name, members) in zip(grid.T, shown.items(), strict=True):
            rates = by_rate(members)
            column[0].set_title(name)
            column[-1].set_xlabel("step")
            for (eta, some), tone in zip(rates.items(), shades(optimizer(members[0]), len(rates)), strict=True):
                for axes, metric in zip(column, ROWS, strict=True):
                    found = seed_band(
                        axes, some, metric, "train", self.points, color=tone, label=f"$\\eta$ = {eta:.3g}"
                    )
                    if len(found):
                        words.append(f"{name}, step size {eta:g}: {label(metric)} peaks at {found['mean'].max():.3g}.")
                column[-1].axhline(edge(some[0]), color=tone, linestyle="--", linewidth=0.8, label="_edge")
            column[0].legend()
        for axes, metric in zip(grid[:, 0], ROWS, strict=True):
            axes.set_ylabel(label(metric, "train" if metric != "lambda_max" else ""))
        logarithmic(grid[-1, 0])
        heading = entitle(figure, "SGD without the steep directions", used)
        return {"train": Drawing(figure, heading, f"{heading}. {' '.join(words)}", used)}
