"""Losses compared: one row per quantity, one column per optimizer, one colour per loss."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

from analysis.methods import method
from analysis.plugins import Count, SettingError
from analysis.run import Run
from figures.curves import entitle, label, panels, seed_band
from figures.kinds import Drawing, Kind
from figures.records import optimizer
from figures.style import OKABE_ITO, logarithmic, title

LOSS_COLOURS = {
    "CE": OKABE_ITO["black"],
    "CalMO": OKABE_ITO["vermilion"],
    "Flat": OKABE_ITO["sky"],
    "Rob": OKABE_ITO["green"],
    "label smoothing": OKABE_ITO["purple"],
    "focal loss": OKABE_ITO["orange"],
    "MSE": OKABE_ITO["blue"],
}


def _names(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Losses(Kind):
    """Mean over seeds and a band of one standard deviation for each loss; a column per optimizer.

    Runs of several step sizes are shown at the one that all losses of the optimizer share, the largest if several.

    Attributes:
        quantities: rows, as ``metric/split``.
        points: a longer trajectory is thinned for drawing.
    """

    quantities: Annotated[tuple[str, ...], BeforeValidator(_names)] = (
        "accuracy/test",
        "ece/test",
        "ece/train",
        "lambda_max/train",
    )
    points: Count = 2000

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`."""
        columns = {name: cells for name, cells in _columns(runs).items() if cells}
        if not columns:
            raise SettingError("losses: no optimizer has runs of a step size that all of its losses share")
        figure, grid = panels(len(self.quantities), len(columns), height=1.3, sharex=True, sharey="row")
        looks = _looks(loss for _, by_loss in columns.values() for loss in by_loss)
        used: list[Run] = []
        words = []
        for column, (name, (eta, by_loss)) in zip(grid.T, columns.items(), strict=True):
            column[0].set_title(f"{title(name)}, $\\eta$ = {eta:.3g}")
            column[-1].set_xlabel("step")
            for loss, members in by_loss.items():
                used += members
                look = looks[loss]
                for axes, quantity in zip(column, self.quantities, strict=True):
                    metric, _, split = quantity.partition("/")
                    found = seed_band(axes, members, metric, split, self.points, label=loss, **look)
                    if len(found):
                        words.append(
                            f"{title(name)}, {loss}: {label(metric, split)} ends at {found['mean'].iloc[-1]:.3g}."
                        )
        for axes, quantity in zip(grid[:, 0], self.quantities, strict=True):
            metric, _, split = quantity.partition("/")
            axes.set_ylabel(label(metric, split))
            if "sharpness" in metric or metric == "lambda_max":
                logarithmic(axes)
        handles = {line.get_label(): line for axes in grid.ravel() for line in axes.lines}
        figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=6)
        heading = entitle(figure, "Losses compared, mean and standard deviation over seeds", used)
        return {"all": Drawing(figure, heading, f"{heading}. {' '.join(words)}", used)}


def _looks(losses: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour and line of each loss; those that the paper does not have differ by their dashes."""
    names = dict.fromkeys(losses)
    others = [name for name in names if name not in LOSS_COLOURS]
    dashes = {name: ("-", "--", "-.", ":")[place % 4] for place, name in enumerate(others)}
    return {
        name: {"color": LOSS_COLOURS.get(name, OKABE_ITO["yellow"]), "linestyle": dashes.get(name, "-")}
        for name in names
    }


def _columns(runs: Sequence[Run]) -> dict[str, tuple[float, dict[str, list[Run]]]]:
    """For each optimizer the shared step size and the runs of each loss at it."""
    table: dict[str, dict[str, dict[float, list[Run]]]] = {}
    order = {loss: place for place, loss in enumerate(LOSS_COLOURS)}
    for run in sorted(runs, key=lambda run: order.get(method(run), len(order))):
        eta = float(run.setting("optimizer.lr") or 0)
        table.setdefault(optimizer(run), {}).setdefault(method(run), {}).setdefault(eta, []).append(run)
    columns = {}
    for name, by_loss in table.items():
        shared = set.intersection(*(set(rates) for rates in by_loss.values()))
        if shared:
            eta = max(shared)
            columns[name] = (eta, {loss: rates[eta] for loss, rates in by_loss.items()})
    return columns
