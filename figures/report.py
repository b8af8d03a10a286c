"""One self-contained HTML page: what was run, a table of all runs, and the figures."""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import get_args

import pandas as pd

from analysis.methods import method
from analysis.plugins import SettingError
from analysis.run import Run
from analysis.summary import audit_errors, run_table
from figures.kinds import KINDS
from figures.kinds.table import LEFT, shown
from figures.markup import picture, row, table
from figures.panel import panel
from figures.published import Name, compare, notes
from figures.records import slug
from figures.style import style, title
from figures.verdicts import verdicts

COLUMNS = {
    "run": "run",
    "peak_ece": "peak ECE",
    "peak_ece_step": "at step",
    "peak_sharpness": "peak sharpness",
    "peak_sharpness_step": "at step",
    "edge": "2/η",
    "accuracy_train": "final accuracy, train",
    "accuracy_test": "final accuracy, test",
    "pearson_r": "Pearson r, descriptive",
}

PAGE = Path(__file__).with_name("page.html")


def report(runs: Sequence[Run], out: str | Path) -> Path:
    """Write ``out/report.html``, which opens from disk and needs no network.

    Args:
        runs: the records.
        out: folder, made if it is not there.

    Raises:
        SettingError: no runs.
    """
    if not len(runs):
        raise SettingError("runs: there are none to report on")
    everything = list(runs)
    sections = {
        "What was run": _what(everything),
        "Verdicts": verdicts(everything),
        "Explore": panel(everything),
        **_figures(everything),
        "Ours and the paper's": _published(everything),
        "Runs": _table(run_table(everything)),
    }
    sections = {name: body for name, body in sections.items() if body}
    labels = dict.fromkeys(str(run.meta.get("data", {}).get("label", "unnamed data")) for run in everything)
    page = Template(PAGE.read_text(encoding="utf-8")).substitute(
        title="margintail report",
        subtitle=html.escape(f"{len(everything)} runs on {', '.join(labels)}"),
        links="".join(f'<li><a href="#{slug(name)}">{html.escape(name)}</a></li>' for name in sections),
        sections="\n".join(_section(name, body) for name, body in sections.items()),
    )
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _section(name: str, body: str) -> str:
    anchor = slug(name)
    heading = f'<h2 id="{anchor}">{html.escape(name)}</h2>'
    return f'<section aria-labelledby="{anchor}" class="{anchor}">{heading}\n{body}</section>'


def _what(runs: list[Run]) -> str:
    facts = {
        "data": [_samples(run) for run in runs],
        "model": [_model(run) for run in runs],
        "loss": [method(run) for run in runs],
        "optimizers": [title(run.spec["optimizer"]["name"]) for run in runs],
        "steps": [str(run.spec.get("steps", "")) for run in runs],
        "device": [str(run.meta.get("device", "")) for run in runs],
        "status": [run.status for run in runs],
        "sharpness": _audits(runs),
        "versions": [", ".join(f"{k} {v}" for k, v in run.meta.get("versions", {}).items()) for run in runs],
        "commit": [_commit(run) for run in runs],
    }
    items = "".join(
        f"<dt>{name}</dt><dd>{html.escape('; '.join(dict.fromkeys(values)))}</dd>" for name, values in facts.items()
    )
    return f"<dl>{items}</dl>"


def _audits(runs: list[Run]) -> list[str]:
    errors = pd.concat([audit_errors(run) for run in runs]).abs()
    if not len(errors):
        return ["not audited"]
    return [
        f"searched anew at {len(errors)} random steps, where the recorded value was off by {errors.max():.1e} at most"
    ]


def _model(run: Run) -> str:
    name, *settings = (
        str(value) if key == "name" else f"{key} = {json.dumps(value)}"
        for key, value in sorted(run.spec.get("model", {"name": "unnamed"}).items(), key=lambda item: item[0] != "name")
    )
    return ", ".join([name, *settings])


def _samples(run: Run) -> str:
    data = run.meta.get("data", {})
    counts = f"{data.get('n_train', '?')} training, {data.get('n_test', 0)} test samples"
    return f"{data.get('label', 'unnamed data')}: {counts}"


def _commit(run: Run) -> str:
    commit = run.meta.get("commit")
    return "not a checkout" if not commit else commit["id"][:12] + (" with local changes" if commit["dirty"] else "")


def _table(runs: pd.DataFrame) -> str:
    rows = (row([_cell(values[name]) for name in COLUMNS]) for values in runs.to_dict("records"))
    return (
        "<p>ECE has 15 bins of equal width, on the training split. Pearson's r of ECE with sharpness is descriptive: "
        "two curves that rise and fall correlate whatever drives them. 2/η is the edge of stability of a plain "
        f"gradient step; AdamW and Muon have none.</p>{table('Table of runs', COLUMNS.values(), rows)}"
    )


def _published(runs: list[Run]) -> str:
    parts = []
    for name in get_args(Name):
        numbers = compare(name, runs)
        if (numbers["verdict"] == "not run").all():
            continue
        missing = numbers["verdict"] == "not run"
        found = shown(numbers[~missing])
        said = [
            *notes(name, runs),
            *([f"{missing.sum()} numbers of the paper have no run here."] if missing.any() else []),
        ]
        heading = name.replace("table", "Table ")
        words = [i for i, column in enumerate(found) if column in (*LEFT, "verdict", "coupling")]
        rows = (row(cells, words) for cells in found.astype(str).to_numpy().tolist())
        parts.append(
            f"<h3>{heading}</h3><p>{html.escape(' '.join(said))}</p>"
            + table(f"{heading}, ours and the paper's", map(str, found), rows, words=words)
        )
    return "".join(parts)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if value != value:
        return "–"
    return f"{value:.0f}" if value.is_integer() and abs(value) >= 10 else f"{value:.3g}"


def _figures(runs: list[Run]) -> dict[str, str]:
    kind = KINDS.build({"name": "dynamics", "points": 200}, "figure")
    with style():
        return {
            f"Dynamics: {drawing.title.partition(':')[0]}": picture(drawing, f"dynamics-{part}")
            for part, drawing in kind.draw(runs).items()
        }
