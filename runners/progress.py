"""The progress of a sweep in the terminal: time left, and the current loss, ECE and sharpness."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from runners.sweep import Job, Progress


class Display:
    """One bar over all steps of all runs, and a line for each run under way."""

    def __init__(self, bar: Bar, jobs: list[Job]) -> None:
        self._bar = bar
        self._steps = {job.spec.id: job.spec.steps for job in jobs}
        self._done = dict.fromkeys(self._steps, 0)
        self._lines: dict[str, TaskID] = {}
        self._total = bar.add_task(f"{len(jobs)} runs", total=sum(self._steps.values()), latest="")

    def show(self, progress: Progress) -> None:
        """Take in where one run stands."""
        self._bar.update(self._total, advance=progress.step - self._done[progress.id])
        self._done[progress.id] = progress.step
        if progress.id not in self._lines:
            self._lines[progress.id] = self._bar.add_task(progress.id, total=self._steps[progress.id], latest="")
        line = self._lines[progress.id]
        self._bar.update(line, completed=progress.step, latest=_words(progress.latest))
        if progress.step == self._steps[progress.id]:
            self._bar.update(line, visible=False)


def _words(latest: dict[str, float]) -> str:
    names = {"loss": "loss", "ece": "ECE", "sharpness": "sharpness"}
    return "  ".join(f"{label} {latest[name]:.3g}" for name, label in names.items() if name in latest)


@contextmanager
def display(console: Console, jobs: list[Job]) -> Iterator[Display]:
    """Show a `Display` while the block runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[latest]}"),
    )
    with Bar(*columns, console=console, transient=False) as bar:
        yield Display(bar, jobs)
