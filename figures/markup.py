"""Pieces of HTML that the sections of the report share."""

from collections.abc import Iterable
from html import escape


def table(label: str, head: Iterable[str], rows: Iterable[str], anchor: str = "") -> str:
    """A table that scrolls sideways by itself, by keyboard too.

    Args:
        label: what a screen reader calls it.
        head: texts of the head, escaped here.
        rows: ``<tr>`` elements, as `row` makes them.
        anchor: identifier that links lead to.
    """
    cells = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    identifier = f' id="{anchor}"' if anchor else ""
    return (
        f'<div class="scroll"{identifier} tabindex="0" role="region" aria-label="{escape(label, quote=True)}">'
        f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def row(cells: Iterable[str]) -> str:
    """A row of plain cells, escaped here."""
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
