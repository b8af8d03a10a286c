"""Writing figures: PDF and PNG for papers, SVG for pages, and a JSON that names what is behind them."""

import io
import json
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl

from figures.kinds import Drawing, Kind
from figures.paper import Item
from figures.records import scale


def save(drawing: Drawing, path: Path, kind: Kind, item: Item | None = None) -> Path:
    """Write ``path`` (a PDF), its PNG, its JSON and, of a figure of numbers, its CSV; returns the path."""
    drawing.figure.savefig(path, metadata={"CreationDate": None})
    drawing.figure.savefig(path.with_suffix(".png"))
    path.with_suffix(".json").write_text(json.dumps(sidecar(drawing, kind, item), indent=2), encoding="utf-8")
    if drawing.table is not None:
        drawing.table.to_csv(path.with_suffix(".csv"), index=False)
    return path


def sidecar(drawing: Drawing, kind: Kind, item: Item | None = None) -> dict[str, Any]:
    """What is behind a figure: runs, settings, data, scale, commit and versions, as JSON values."""
    runs = drawing.runs
    return {
        "title": drawing.title,
        "description": drawing.description,
        "figure": kind.table(),
        "paper": item.model_dump() if item else None,
        "notes": list(drawing.notes),
        "runs": [run.id for run in runs],
        "scale": scale(runs),
        "datasets": _distinct(run.spec.get("dataset") for run in runs),
        "data": _distinct(run.meta.get("data") for run in runs),
        "models": _distinct(run.spec.get("model") for run in runs),
        "commits": _distinct(run.meta.get("commit") for run in runs),
        "versions": _distinct(run.meta.get("versions") for run in runs),
        "drawn_with": {"matplotlib": mpl.__version__},
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(value) for value in values)]


def svg(drawing: Drawing, name: str) -> str:
    """The figure as an SVG element with a text alternative, to be put inside a page.

    Args:
        drawing: what to write.
        name: prefix that keeps the identifiers of several figures of one page apart.
    """
    buffer = io.StringIO()
    drawing.figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    # A tenth of a point is below what a screen shows; the digits after it are half of the file.
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\d+\.\d)\d+", r"\1", path.group()), text)
    label = escape(drawing.description, quote=True)
    return re.sub(r"<svg ", lambda _: f'<svg role="img" aria-label="{label}" ', text, count=1)
