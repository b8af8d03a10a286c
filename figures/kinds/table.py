"""A table of the paper with our numbers beside it."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis.plugins import SettingError
from analysis.run import Run
from figures.curves import entitle
from figures.kinds import Drawing, Kind
from figures.published import NOTES, Name, compare
from figures.records import series
from figures.style import PAGE_WIDTH, title

LEFT = ("optimizer", "method", "quantity")
"""Columns of words."""


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
        notes = [NOTES[self.reference]]
        if self.reference != "table1" and not any(len(series(run, "loss", "validation")) for run in runs):
            notes.append("No validation loss was recorded: values are those of the last step, not of the best one.")
        words = shown(table)
        figure = Figure(figsize=(PAGE_WIDTH, 0.9 + 0.17 * (len(words) + 1)))
        self._typeset(figure, words)
        name = self.reference.replace("table", "Table ")
        heading = entitle(figure, f"{name} of the paper and ours", runs)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items())
        text = f"{heading}. Of {len(table)} numbers, {counts}. {' '.join(notes)}"
        return {self.reference: Drawing(figure, heading, text, runs, table, tuple(notes))}

    def _typeset(self, figure: Figure, words: pd.DataFrame) -> None:
        """Lines of text between rules, words to the left and numbers to the right of their column."""
        axes = figure.add_axes((0.02, 0.02, 0.96, 1 - 0.65 / figure.get_figheight()))
        axes.set(xlim=(0, 1), ylim=(len(words) + 1, 0))
        axes.set_axis_off()
        columns = [str(name) for name in words]
        widths = [max(len(name), *map(len, words[name])) + 2 for name in columns]
        ends = [sum(widths[: i + 1]) / sum(widths) for i in range(len(widths))]
        for name, start, end in zip(columns, [0, *ends], ends, strict=False):
            left = name in LEFT
            for row, text in enumerate([name, *words[name]]):
                weight = "bold" if row == 0 else "normal"
                x, side = (start, "left") if left else (end, "right")
                axes.text(x, row + 0.5, text, ha=side, va="center", fontsize=7, fontweight=weight)
        for row in range(1, len(words) + 2):
            axes.axhline(row, color="#000000", linewidth=0.8 if row == 1 else 0.2)


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The comparison in words, as it is printed: mean and standard deviation in one cell."""
    found = pd.DataFrame({"optimizer": table["optimizer"].map(title)})
    for name in ("method", "quantity"):
        if name in table:
            found[name] = table[name].str.replace("_", " ")
    found["ours"] = [_pair(a, b) for a, b in zip(table["ours"], table["ours_std"], strict=True)]
    found["values"] = table["values"].astype(str)
    found["paper"] = [_pair(a, b) for a, b in zip(table["paper"], table["paper_std"], strict=True)]
    found["difference"] = [f"{value:+.3g}" if value == value else "–" for value in table["difference"]]
    found["verdict"] = table["verdict"]
    if "coupling" in table:
        found["coupling"] = table["coupling"].str.lower().replace("", "–")
    return found


def _pair(mean: float, std: float) -> str:
    if mean != mean:
        return "–"
    digits = 1 if abs(mean) >= 10 else 2 if max(abs(mean), std if std == std else 0) >= 0.1 else 3
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std == std else "")
