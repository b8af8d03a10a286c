"""What the command line prints: tables that fit a terminal, closing sentences and complaints."""

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.record import Runs
from analysis.results import Result, Verdict
from analysis.summary import run_table

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
