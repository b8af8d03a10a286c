"""How every figure looks: colours, sizes and type."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
}
"""Colours that readers with any colour vision tell apart (Okabe & Ito 2008)."""

OPTIMIZER_COLOURS = {
    "gd": OKABE_ITO["blue"],
    "sgd": OKABE_ITO["sky"],
    "adamw": OKABE_ITO["vermilion"],
    "muon": OKABE_ITO["purple"],
    "sam": OKABE_ITO["green"],
    "bulk_sgd": OKABE_ITO["orange"],
}
OPTIMIZER_NAMES = {"gd": "GD", "sgd": "SGD", "adamw": "AdamW", "muon": "Muon", "sam": "SAM", "bulk_sgd": "BulkSGD"}

COLUMN_WIDTH = 3.35
PAGE_WIDTH = 6.9
"""Inches, of one and of two columns of a two-column paper."""
LETTER = 0.075
"""Inches, a little more than the mean width of a letter of a figure's title."""


def colour(optimizer: str) -> str:
    """The colour of an optimizer, the same in every figure."""
    return OPTIMIZER_COLOURS.get(optimizer, OKABE_ITO["black"])


def title(optimizer: str) -> str:
    """How an optimizer is spelled."""
    return OPTIMIZER_NAMES.get(optimizer, optimizer)


def shades(optimizer: str, count: int) -> list[str]:
    """``count`` shades of an optimizer's colour, light to dark, for its step sizes."""
    middle = colour(optimizer)
    if count == 1:
        return [middle]
    light, dark = (sns.blend_palette([middle, end], 100)[amount] for end, amount in (("#ffffff", 55), ("#000000", 60)))
    return [mpl.colors.to_hex(shade) for shade in sns.blend_palette([light, middle, dark], count)]


class PlainLogLocator(LogLocator):
    """Ticks at powers of ten; closer ones where an axis spans little.

    Args:
        dense: closer still, for labels that stand one above the other.
    """

    def __init__(self, dense: bool) -> None:
        super().__init__()
        self._steps = {8: (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0), 100: (1.0, 2.0, 5.0)} if dense else {30: (1.0, 2.0, 5.0)}

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """See matplotlib."""
        span = vmax / vmin if vmin > 0 else float("inf")
        self.set_params(subs=next((steps for limit, steps in self._steps.items() if span < limit), (1.0,)))
        return super().tick_values(vmin, vmax)


def logarithmic(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """A logarithmic axis with plain numbers, also where it spans less than a decade."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(PlainLogLocator(dense=which == "y"))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    # Minor ticks of a logarithmic axis are many, and cost more than all else in a figure.
    axis.set_minor_locator(NullLocator())


@contextmanager
def style() -> Iterator[None]:
    """Draw in the house style; nothing of the caller's matplotlib is changed."""
    settings = {
        **sns.axes_style("ticks"),
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "figure.titlesize": 9,
        "lines.linewidth": 1.1,
        "axes.linewidth": 0.6,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e6e6e6",
        "grid.linewidth": 0.5,
        "pdf.fonttype": 42,
        "ps.fonttype": 42,
        "svg.fonttype": "none",
        "savefig.dpi": 200,
        # A third of a pixel is not seen, and halves the size of the pages.
        "path.simplify_threshold": 0.33,
    }
    with mpl.rc_context(settings):
        yield
