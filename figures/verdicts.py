"""Verdicts in the report: a table of all claims, each unfolding to its numbers and its figure."""

import html
from collections.abc import Sequence
from typing import Any

from analysis.plugins import SettingError
from analysis.results import Outcome, Verdict
from analysis.run import Run
from analysis.verdicts import verify
from figures.kinds import KINDS
from figures.markup import picture, table
from figures.records import slug
from figures.style import style

FIGURES: dict[str, dict[str, Any]] = {
    "C1": {"name": "coupling", "split": "train"},
    "C1t": {"name": "coupling", "split": "test"},
    "C2": {"name": "phase", "points": 150},
    "C3 bounds": {"name": "slack", "points": 150},
    "C3 exponents": {"name": "exponents"},
    "C3 mediation": {"name": "phase", "x": "exp_moment", "points": 150},
    "C4": {"name": "losses", "points": 150},
    "KCE agrees": {"name": "phase", "x": "kce", "points": 150},
}
"""The figure that each claim unfolds to, where it has one that the dynamics do not show."""

NUMBERS = ("estimate", "interval", "p", "p, Holm", "paper", "runs")


def verdicts(runs: Sequence[Run]) -> str:
    """HTML of all verdicts, grouped by claim."""
    by_claim: dict[str, list[Verdict]] = {}
    for verdict in verify(runs):
        by_claim.setdefault(verdict.claim, []).append(verdict)
    rows = (
        f'<tr><th scope="row"><a href="#{slug(claim)}-claim">{html.escape(claim)}</a></th>'
        + "".join(f"<td>{sum(one.outcome is outcome for one in members)}</td>" for outcome in Outcome)
        + "</tr>"
        for claim, members in by_claim.items()
    )
    return (
        "<p>What these runs say of each claim of the paper, at their data set and scale. A verdict needs a test that "
        "is valid for trajectories; where the runs cannot tell, it is inconclusive and says why. Unfold a claim for "
        "its numbers and its figure.</p>"
        + table("Verdicts by claim", ["claim", *(outcome.value.lower() for outcome in Outcome)], rows)
        + "".join(_claim(claim, members, runs) for claim, members in by_claim.items())
    )


def _claim(claim: str, members: list[Verdict], runs: Sequence[Run]) -> str:
    counts = ", ".join(
        f"{count} {outcome.value.lower()}"
        for outcome in Outcome
        if (count := sum(one.outcome is outcome for one in members))
    )
    numbers = table(f"Verdicts on {claim}", ("claim", "verdict", *NUMBERS), map(_row, members), f"{slug(claim)}-claim")
    summary = f"<summary><b>{html.escape(claim)}</b>: {counts}</summary>"
    figure = _figure(claim, runs) if any(member.runs for member in members) else ""
    return f'<details class="claim">{summary}{numbers}{figure}</details>'


def _row(verdict: Verdict) -> str:
    interval = "–" if verdict.interval is None else "[{:.3g}, {:.3g}]".format(*verdict.interval)
    numbers = [verdict.effect, verdict.pvalue, verdict.pvalue_holm, verdict.paper]
    effect, pvalue, adjusted, paper = ("–" if number is None else f"{number:.3g}" for number in numbers)
    cells = [effect, interval, pvalue, adjusted, paper, str(verdict.runs)]
    outcome = verdict.outcome.value.lower()
    detail = ". ".join(filter(None, [verdict.estimand, verdict.window, verdict.reason]))
    return (
        f'<tr class="{outcome}"><td class="words">{html.escape(verdict.statement)}'
        f'<small>{html.escape(detail)}</small></td><td class="outcome">{outcome}</td>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
    )


def _figure(claim: str, runs: Sequence[Run]) -> str:
    if claim not in FIGURES:
        return ""
    try:
        with style():
            drawings = KINDS.build(FIGURES[claim], "figure").draw(runs)
            return "".join(picture(drawing, f"{slug(claim)}-{part}") for part, drawing in drawings.items())
    except SettingError as lacking:
        return f'<p class="faint">No figure: {html.escape(str(lacking))}.</p>'
