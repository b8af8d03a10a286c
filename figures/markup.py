"""Pieces of HTML that the sections of the report share."""

from collections.abc import Collection, Iterable
from html import escape

from figures.kinds import Drawing
from figures.outputs import svg


def table(label: str, head: Iterable[str], rows: Iterable[str], anchor: str = "", words: Collection[int] = ()) -> str:
    """A table that scrolls sideways by itself, by keyboard too.

    Args:
        label: what a screen reader calls it.
        head: texts of the head, escaped here.
        rows: ``<tr>`` elements, as `row` makes them.
        anchor: identifier that links lead to.
        words: columns of words beside the first, which stand to the left.
    """
    cells = "".join(f'<th scope="col"{_side(i, words)}>{escape(text)}</th>' for i, text in enumerate(head))
    identifier = f' id="{anchor}"' if anchor else ""
    return (
        f'<div class="scroll"{identifier} tabindex="0" role="region" aria-label="{escape(label, quote=True)}">'
        f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def row(cells: Iterable[str], words: Collection[int] = ()) -> str:
    """A row of plain cells, escaped here; ``words`` as for `table`."""
    return "<tr>" + "".join(f"<td{_side(i, words)}>{escape(cell)}</td>" for i, cell in enumerate(cells)) + "</tr>"


def _side(column: int, words: Collection[int]) -> str:
    return ' class="left"' if column in words else ""


def picture(drawing: Drawing, name: str) -> str:
    """A figure with its notes and, folded, its description; on a narrow screen it scrolls sideways by itself.

    Args:
        drawing: what is shown.
        name: prefix of its identifiers, unlike that of any other figure of the page.
    """
    notes = "".join(f"<p>{escape(note[:1].upper() + note[1:])}.</p>" for note in drawing.notes)
    label = escape(f"Figure: {drawing.title}", quote=True)
    return (
        f'<figure><div class="scroll" tabindex="0" role="group" aria-label="{label}">{svg(drawing, name)}</div>'
        f"<figcaption>{notes}<details><summary>In words</summary><p>{escape(drawing.description)}</p></details>"
        "</figcaption></figure>"
    )
