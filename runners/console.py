"""What the command line shows: tables that fit a terminal, the progress of runs, closing sentences and complaints."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.plugins import Plugin, Registry
from analysis.record import Runs
from analysis.results import Result, Verdict
from analysis.summary import run_table
from runners.progress import display
from runners.reproduce import Cost
from runners.spec import EXPERIMENTS
from runners.sweep import Job, Outcome, default_workers, sweep

console = Console()


def print_runs(runs: Runs) -> None:
    """A line per run that fits a terminal of 80 columns; `run_table` has the numbers in full."""
    title = "train ECE (15 bins) and Gauss-Newton sharpness, by run"
    table = Table(box=None, padding=(0, 1, 0, 0), title=title, title_justify="left")
    table.add_column("run", no_wrap=True)
    for column in ("peak\nECE", "at\nstep", "peak\nsharp.", "at\nstep", "2/lr", "acc.\ntrain", "acc.\ntest", "r"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in run_table(runs).to_dict("records"):
        numbers = (
            f"{row['peak_ece']:.3f}",
            f"{row['peak_ece_step']:.0f}",
            f"{row['peak_sharpness']:.3g}",
            f"{row['peak_sharpness_step']:.0f}",
            f"{row['edge']:.3g}",
            f"{row['accuracy_train']:.3f}",
            f"{row['accuracy_test']:.3f}",
            f"{row['pearson_r']:.2f}",
        )
        table.add_row(row["run"], *("-" if number == "nan" else number for number in numbers))
    console.print(table)
    say(
        "r is Pearson's, of train ECE with sharpness: descriptive only, as any two rising and falling curves correlate."
    )


def print_frame(frame: pd.DataFrame) -> None:
    table = Table(*map(str, frame.columns), box=None, padding=(0, 1))
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row))
    console.print(table)


def print_plugins(kind: str, registry: Registry) -> None:
    """Each plug-in of a kind with its settings and the first line of what it says of itself."""
    table = Table("name", "settings", "what it is", title=kind, title_justify="left", box=SIMPLE_HEAD)
    for name in registry.names():
        plugin = registry.get(name)
        table.add_row(name, escape(_settings(plugin)), escape((plugin.__doc__ or "").strip().splitlines()[0]))
    console.print(table)


def _settings(plugin: type[Plugin]) -> str:
    return ", ".join(
        name if field.is_required() else f"{name} = {field.default}" for name, field in plugin.model_fields.items()
    )


def print_experiments() -> None:
    """Each preset with its first line."""
    table = Table("name", "what it is", title="experiments", title_justify="left", box=SIMPLE_HEAD)
    for path in sorted(EXPERIMENTS.glob("*.toml")):
        table.add_row(path.stem, escape(path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")))
    console.print(table)


def print_costs(costs: Sequence[Cost], workers: int) -> None:
    """Which runs are missing, what each kind takes, and the whole for a number of worker processes."""
    count, seconds = sum(len(cost.jobs) for cost in costs), sum(cost.seconds for cost in costs)
    if not count:
        say("Every run is recorded: nothing is missing.")
        return
    for preset in dict.fromkeys(cost.preset for cost in costs):
        table = Table("missing runs of", "step sizes", "seeds", title=preset, title_justify="left", box=SIMPLE_HEAD)
        for column in ("runs", "time", "disk"):
            table.add_column(column, justify="right", no_wrap=True)
        for cost in (cost for cost in costs if cost.preset == preset):
            specs = [job.spec for job in cost.jobs]
            rates = ", ".join(f"{rate:.3g}" for rate in sorted({spec.optimizer.lr for spec in specs}))
            seeds = ", ".join(map(str, sorted({spec.seed for spec in specs})))
            row = cost.kind, rates, seeds, str(len(specs)), _duration(cost.seconds), _bytes(cost.size)
            table.add_row(*map(escape, row))
        console.print(table)
    # However many workers there are, none of them can share a run.
    longest = max(cost.seconds / len(cost.jobs) for cost in costs)
    say(
        f"{count} runs are missing: about {_duration(max(seconds / workers, longest))} on {workers} worker processes, "
        f"and {_bytes(sum(cost.size for cost in costs))} on disk.",
        "Times are of a few steps and observations of each kind, taken here one kind after the other: other load, or "
        "workers that share a memory bus, make them longer. To draw comes on top.",
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def print_items(items: Mapping[str, tuple[str, Path]]) -> None:
    """Each figure or table that was made: name, title, and where it is."""
    table = Table("item", "what it shows", "where", box=SIMPLE_HEAD)
    for name, (title, path) in items.items():
        table.add_row(name, escape(title), escape(str(path)))
    console.print(table)


def make(jobs: list[Job], workers: int | None) -> Outcome:
    """Make runs under a progress bar, and complain of those that failed.

    Raises:
        typer.Exit: 130 after Ctrl-C.
    """
    folder = os.path.commonpath([job.path.parent for job in jobs])
    with display(console, jobs) as bar:
        outcome = sweep(jobs, workers or default_workers(job.spec for job in jobs), bar.show)
    for run_id, reason in outcome.failed.items():
        complain(f"{run_id}: {reason}")
    if outcome.interrupted:
        say(
            f"Stopped: {len(outcome.finished)} of {len(jobs)} runs are finished, and the others can go on.",
            f"Next: the same command again, or margintail resume {folder} for those that were begun.",
        )
        raise typer.Exit(130)
    return outcome


def complete(jobs: list[Job], workers: int | None) -> None:
    """Make runs, all of them.

    Raises:
        typer.Exit: 130 after Ctrl-C, 1 if a run failed.
    """
    outcome = make(jobs, workers)
    if outcome.failed:
        folder = jobs[0].path.parent
        say(f"{len(outcome.failed)} of {len(jobs)} runs failed; what they recorded is in {folder}.")
        raise typer.Exit(1)


def say(*sentences: str) -> None:
    for sentence in sentences:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def complain(sentence: str) -> None:
    Console(stderr=True).print(f"error: {sentence}", markup=False, highlight=False, soft_wrap=True)


def print_result(result: Result) -> None:
    """What a result says of itself."""
    console.print(result.summary(), markup=False, highlight=False, soft_wrap=True)


def print_verdicts(verdicts: list[Verdict]) -> None:
    """Claim, statement, outcome and numbers of each verdict."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("claim", no_wrap=True)
    table.add_column("statement", ratio=1)
    table.add_column("verdict", no_wrap=True)
    for column in ("effect", "interval", "p\n(Holm)", "paper", "runs"):
        table.add_column(column, justify="right", no_wrap=True)
    for verdict in verdicts:
        interval = "-" if verdict.interval is None else "{:.2g}, {:.2g}".format(*verdict.interval)
        numbers = (verdict.effect, interval, verdict.pvalue_holm, verdict.paper, verdict.runs)
        table.add_row(escape(verdict.claim), escape(verdict.statement), verdict.verdict, *map(_cell, numbers))
    console.print(table)


def _cell(value: object) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
