"""A table of the paper with our numbers beside it."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis.plugins import SettingError
from analysis.run import Run
from figures.curves import entitle
from figures.kinds import Drawing, Kind
from figures.published import METHODS, Name, compare, notes
from figures.style import PAGE_WIDTH, title

LEFT = ("optimizer", "method", "quantity", "selection")
"""Columns of words."""
GAP = 2
"""Letters between two columns."""
LETTER, ROW = 0.063, 0.17
"""Inches, of a letter with its share of wide ones, and of a line."""


class Table(Kind):
    """Ours, the paper's, the difference and a verdict, row by row; see `figures.published.compare`.

    Attributes:
        reference: which table of the paper.
    """

    reference: Name = "table1"

    def draw(self, runs: Sequence[Run]) -> dict[str, Drawing]:
        """See `Kind.draw`."""
        table = compare(self.reference, runs)
        if (table["verdict"] == "not run").all():
            raise SettingError(f"table: no run of an optimizer and loss of {self.reference} with what it compares")
        said = notes(self.reference, runs)
        words = shown(table)
        letters = [max(len(name), *map(len, words[name])) + GAP for name in map(str, words)]
        figure = Figure(figsize=(max(PAGE_WIDTH, LETTER * sum(letters)), 0.9 + ROW * (len(words) + 1)))
        name = self.reference.replace("table", "Table ")
        heading = entitle(figure, f"{name} of the paper and ours", runs)
        self._typeset(figure, words, letters)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items())
        text = f"{heading}. Of {len(table)} numbers, {counts}. {' '.join(said)}"
        return {self.reference: Drawing(figure, heading, text, runs, table, said)}

    def _typeset(self, figure: Figure, words: pd.DataFrame, letters: list[int]) -> None:
        """Lines of text between rules, words to the left and numbers to the right of their column."""
        axes = figure.subplots()
        height, lines = figure.get_figheight(), figure.get_suptitle().count("\n") + 1
        figure.subplots_adjust(left=0.02, right=0.98, bottom=0.1 / height, top=1 - (0.38 + 0.15 * lines) / height)
        axes.set(xlim=(0, sum(letters)), ylim=(len(words) + 1, 0))
        axes.set_axis_off()
        start = 0
        for name, width in zip(map(str, words), letters, strict=True):
            left = name in LEFT
            for row, text in enumerate([name, *words[name]]):
                weight = "bold" if row == 0 else "normal"
                x, side = (start + GAP / 2, "left") if left else (start + width - GAP / 2, "right")
                axes.text(x, row + 0.5, text, ha=side, va="center", fontsize=7, fontweight=weight)
            start += width
        for row in range(1, len(words) + 2):
            axes.axhline(row, color="#000000", linewidth=0.8 if row == 1 else 0.2)


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The comparison in words, as it is printed: mean and standard deviation in one cell."""
    found = pd.DataFrame({"optimizer": table["optimizer"].map(title)})
    if "method" in table:
        found["method"] = table["method"].replace(METHODS)
    found["quantity"] = table["quantity"].str.replace("_", " ")
    found["ours"] = _pairs(table, "ours")
    found["values"] = table["values"].astype(str)
    if "selection" in table:
        found["selection"] = table["selection"].replace("", "–")
        found["at last step"] = _pairs(table, "last")
    found["paper"] = _pairs(table, "paper")
    found["difference"] = [f"{value:+.3g}" if value == value else "–" for value in table["difference"]]
    found["verdict"] = table["verdict"]
    if "coupling" in table:
        found["coupling"] = table["coupling"].str.lower().replace("", "–")
    return found


def _pairs(table: pd.DataFrame, name: str) -> list[str]:
    return [_pair(mean, std) for mean, std in zip(table[name], table[f"{name}_std"], strict=True)]


def _pair(mean: float, std: float) -> str:
    if mean != mean:
        return "–"
    digits = 1 if abs(mean) >= 10 else 2 if max(abs(mean), std if std == std else 0) >= 0.1 else 3
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std == std else "")
