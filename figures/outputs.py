"""Writing figures: PDF and PNG for papers, SVG for pages, and a JSON that names what is behind them."""

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl

from analysis.run import Run
from figures.curves import fitted, settle
from figures.kinds import Drawing, Kind
from figures.paper import Item, spelled
from figures.records import scale as data_and_size


def headed(drawings: Mapping[str, Drawing], name: str, item: Item, scale: str = "") -> dict[str, Drawing]:
    """Drawings of an item of the paper under its number and title, with what they were measured on.

    Args:
        drawings: what its kind made.
        name: of the item.
        item: the item.
        scale: as in `figures.draw`.
    """
    return {part: _headed(drawing, name, item, scale, len(drawings) == 1) for part, drawing in drawings.items()}


def _headed(drawing: Drawing, name: str, item: Item, scale: str, alone: bool) -> Drawing:
    # Of several drawings each keeps the title that tells it from the others.
    what = item.title if alone else drawing.title.removesuffix(f": {data_and_size(drawing.runs)}")
    title, source = f"{spelled(name)}. {what}", measured_on(drawing.runs, item, scale)
    figure = drawing.figure
    lines = [line for part in (title, *source.split("; ")) for line in fitted(figure, part)]
    if figure.get_layout_engine() is None:
        figure.suptitle("\n".join(lines), y=0.99)
        figure.subplots_adjust(top=1 - (0.38 + 0.15 * len(lines)) / figure.get_figheight())
    else:
        figure.suptitle("\n".join(lines))
    heading = f"{title}: {source}"
    table = None if drawing.table is None else drawing.table.assign(measured_on=source)
    return replace(drawing, title=heading, description=f"{heading}. {drawing.description}", table=table)


def measured_on(runs: Sequence[Run], item: Item | None = None, scale: str = "") -> str:
    """Data, sizes, network and scale, and the paper's data set where it is another."""
    words = data_and_size(runs)
    if scale:
        words += f"; {scale}"
    if item and any(_family(run.meta.get("data", {}).get("label", "")) != _family(item.data) for run in runs):
        words += f", in place of the paper's {item.data}"
    return words


def _family(label: str) -> str:
    """What tells data sets apart in their labels: "cifar10" of "CIFAR-10" and of "cifar10-jpeg, label noise 0.2"."""
    word = re.match(r"[a-z]+-?\d*", label.lower())
    return word.group().replace("-", "") if word else ""


def save(drawing: Drawing, path: Path, kind: Kind, item: Item | None = None, scale: str = "") -> Path:
    """Write ``path`` (a PDF), its PNG, its JSON and, of a figure of numbers, its CSV; returns the path."""
    settle(drawing.figure)
    drawing.figure.savefig(path, metadata={"CreationDate": None})
    drawing.figure.savefig(path.with_suffix(".png"))
    path.with_suffix(".json").write_text(json.dumps(sidecar(drawing, kind, item, scale), indent=2), encoding="utf-8")
    if drawing.table is not None:
        drawing.table.to_csv(path.with_suffix(".csv"), index=False)
    return path


def sidecar(drawing: Drawing, kind: Kind, item: Item | None = None, scale: str = "") -> dict[str, Any]:
    """What is behind a figure: runs, settings, data, scale, commit and versions, as JSON values."""
    runs = drawing.runs
    return {
        "title": drawing.title,
        "description": drawing.description,
        "figure": kind.table(),
        "paper": item.model_dump() if item else None,
        "notes": list(drawing.notes),
        "runs": [run.id for run in runs],
        "scale": measured_on(runs, item, scale),
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
    settle(drawing.figure)
    buffer = io.StringIO()
    drawing.figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    # A tenth of a point is below what a screen shows; the digits after it are half of the file.
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\d+\.\d)\d+", r"\1", path.group()), text)
    label = escape(drawing.description, quote=True)
    return re.sub(r"<svg ", lambda _: f'<svg role="img" aria-label="{label}" ', text, count=1)
