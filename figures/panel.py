"""The interactive panel of the report: what a page needs to draw a run at a step."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import calibration
from analysis.run import Run
from figures.curves import label
from figures.records import by_rate, groups, optimizer, series, thin
from figures.style import colour

SCRIPT = Path(__file__).with_name("panel.js")
QUANTITIES = {
    "ece": ("train", "test"),
    "kce": ("train", "test"),
    "lambda_max": ("",),
    "loss": ("train", "test"),
    "accuracy": ("train", "test"),
    "exp_moment": ("train", "test"),
}
SPLITS = ("train", "test")
STEPS, POINTS, BINS, BARS = 40, 200, 15, 30
"""Steps with a diagram, points of a curve, bins of a diagram and bars of a histogram, of each run."""


def panel(runs: Sequence[Run]) -> str:
    """HTML of the panel: controls, three empty plots, the data and the script. Empty where there is nothing to choose.

    Of each optimizer and step size it holds the run with the least seed, at about 40 evenly spread steps.
    """
    chosen: dict[str, dict[str, Any]] = {}
    colours: dict[str, str] = {}
    for name, members in groups(runs).items():
        for eta, some in by_rate(members).items():
            first = min(some, key=lambda run: int(run.setting("seed") or 0))
            if "examples_train" in first.streams:
                chosen.setdefault(name, {})[f"{eta:g}"] = panel_data(first)
                colours[name] = colour(optimizer(first))
    if not chosen:
        return ""
    pairs = [(metric, split) for metric, splits in QUANTITIES.items() for split in splits]
    quantities = {f"{metric}/{split}".rstrip("/"): label(metric, split) for metric, split in pairs}
    data = {"optimizers": chosen, "colours": colours, "quantities": quantities}
    # A record may name anything, also what would close the element.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"""
<p>One run (the least seed) of each optimizer and step size. Choose a step to see its reliability diagram and the
distribution of its margins.</p>
<div class="panel" id="panel" role="group" aria-label="Explore a run">
<noscript>The panel needs JavaScript; all of its numbers are in the records.</noscript>
<div class="controls">
<label>optimizer <select id="panel-optimizer"></select></label>
<label>step size <select id="panel-rate"></select></label>
<label>samples <select id="panel-split"><option>train</option><option>test</option></select></label>
<label>quantity <select id="panel-quantity"></select></label>
<label class="wide"><span>step</span><input id="panel-step" type="range" min="0" value="0"></label>
</div>
<p id="panel-words" role="status" aria-live="polite"></p>
<div class="plots">
<figure><svg id="panel-curve" viewBox="0 0 320 230" role="img" aria-label="Curve over steps"></svg></figure>
<figure><svg id="panel-reliability" viewBox="0 0 320 230" role="img" aria-label="Reliability diagram"></svg></figure>
<figure><svg id="panel-margins" viewBox="0 0 320 230" role="img" aria-label="Histogram of margins"></svg></figure>
</div>
</div>
<script type="application/json" id="panel-data">{text}</script>
<script>{SCRIPT.read_text(encoding="utf-8")}</script>
"""


def panel_data(run: Run) -> dict[str, Any]:
    """What the panel shows of a run, as JSON values: curves, and diagrams by split."""
    curves = {}
    for metric, splits in QUANTITIES.items():
        for split in splits:
            curve = thin(series(run, metric, split or "train"), POINTS)
            if len(curve):
                points = [curve.index.tolist(), [_short(value) for value in curve]]
                curves[f"{metric}/{split}".rstrip("/")] = points
    diagrams = {split: _diagrams(run, split) for split in SPLITS if f"examples_{split}" in run.streams}
    return {"run": run.id, "curves": curves, "diagrams": diagrams}


def _diagrams(run: Run, split: str) -> dict[str, Any]:
    """Steps; per step the bins [confidence, accuracy, count] that hold samples; edges and counts of the margins."""
    stream = f"examples_{split}"
    steps = run.steps(stream)
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(STEPS, len(steps))).round().astype(int))]
    confidence = -np.expm1(run.rows(stream, "log_one_minus_confidence", steps).astype(np.float64))
    table = calibration.reliability(confidence, run.rows(stream, "correct", steps), bins=BINS)
    margin = run.rows(stream, "margin", steps)
    edges = np.linspace(math.floor(margin.min()), math.ceil(margin.max()), BARS + 1)
    bins = [
        [[_short(c), _short(a), int(n)] for c, a, n in zip(*row, strict=True) if n]
        for row in zip(table.confidence, table.accuracy, table.count, strict=True)
    ]
    return {
        "steps": steps.tolist(),
        "bins": bins,
        "edges": [_short(edges[0]), _short(edges[-1])],
        "margins": [np.histogram(row, edges)[0].tolist() for row in margin],
    }


def _short(value: float) -> float:
    return float(f"{value:.3g}")
