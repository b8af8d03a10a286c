"""Many runs on an engine: local processes here; other engines take the same jobs."""

import multiprocessing as mp
import os
import queue
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.record import RecordError, Run
from runners.loop import resume, train
from runners.recorder import Diverged, Recorder
from runners.spec import RunSpec

REPORT_SECONDS = 0.25


@dataclass(frozen=True)
class Job:
    """One run to make or to go on with.

    Attributes:
        spec: what to run.
        path: its record, which may exist.
    """

    spec: RunSpec
    path: Path


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    Attributes:
        id: the run.
        step: updates made so far.
        latest: the newest loss, ECE and sharpness.
    """

    id: str
    step: int
    latest: dict[str, float]


@dataclass
class Outcome:
    """What became of a sweep.

    Attributes:
        finished: ids of runs that reached their last step.
        interrupted: ids of runs that stopped cleanly before it, or never started.
        failed: id -> reason.
    """

    finished: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def pending(specs: Iterable[RunSpec], out: Path) -> list[Job]:
    """The jobs of those specs whose records under ``out`` are not finished."""
    jobs = [Job(spec, out / spec.id) for spec in specs]
    return [job for job in jobs if not (job.path.exists() and Run.open(job.path).status in ("finished", "diverged"))]


def default_workers(specs: Iterable[RunSpec]) -> int:
    """Cores divided by the threads of a run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max((spec.threads for spec in specs), default=1))


def sweep(jobs: list[Job], workers: int, show: Callable[[Progress], None]) -> Outcome:
    """Make the runs on local worker processes.

    Args:
        jobs: what to run.
        workers: processes; 1 runs in this one.
        show: called in this process with the progress of each run, a few times a second.

    Returns:
        What became of each. Ctrl-C lets every run finish its step and write a checkpoint.
    """
    outcome = Outcome()
    with stop_requests() as stopped:
        if workers == 1 or len(jobs) == 1:
            for job in jobs:
                _sort(outcome, job, "interrupted" if stopped() else run_job(job, show, stopped))
        else:
            _spread(jobs, min(workers, len(jobs)), show, stopped, outcome)
    return outcome


def _spread(
    jobs: list[Job],
    workers: int,
    show: Callable[[Progress], None],
    stopped: Callable[[], bool],
    outcome: Outcome,
) -> None:
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        stop = manager.Event()
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupts) as pool:
            running: dict[Future[str], Job] = {pool.submit(_work, job, messages, stop): job for job in jobs}
            while running:
                done, _ = wait(running, timeout=REPORT_SECONDS, return_when=FIRST_COMPLETED)
                if stopped():
                    stop.set()
                for message in _drain(messages):
                    show(message)
                for future in done:
                    job = running.pop(future)
                    error = future.exception()
                    _sort(outcome, job, future.result() if error is None else f"the worker died: {error}")


def _drain(messages: Any) -> Iterator[Progress]:
    while True:
        try:
            yield messages.get_nowait()
        except queue.Empty:
            return


def _ignore_interrupts() -> None:
    """Ctrl-C reaches the whole process group; the parent passes it on as a request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(job: Job, messages: Any, stop: Any) -> str:
    return run_job(job, messages.put, stop.is_set)


def run_job(job: Job, show: Callable[[Progress], None], stopped: Callable[[], bool]) -> str:
    """Make or go on with one run; returns "finished", "interrupted", or the reason of a failure."""
    throttle = Throttle(job.spec.id, job.spec.steps, show, stopped)
    try:
        if job.path.exists():
            path = resume(job.path, report=throttle.report, stop=throttle.stop)
        else:
            path = train(job.spec, job.path.parent, report=throttle.report, stop=throttle.stop)
    except (Diverged, RecordError, ValueError, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return Run.open(path).status


class Throttle:
    """Passes progress on, and asks whether to stop, at most a few times a second."""

    def __init__(self, run_id: str, steps: int, show: Callable[[Progress], None], stopped: Callable[[], bool]) -> None:
        self.run_id = run_id
        self.steps = steps
        self._show = show
        self._stopped = stopped
        self._shown = self._asked = 0.0

    def report(self, step: int, recorder: Recorder) -> None:
        """Show the step if enough time went by, or if it is the last."""
        if step == self.steps or time.monotonic() - self._shown > REPORT_SECONDS:
            self._shown = time.monotonic()
            self._show(Progress(self.run_id, step, recorder.latest()))

    def stop(self) -> bool:
        """Whether a stop was asked for."""
        if time.monotonic() - self._asked < REPORT_SECONDS / 2:
            return False
        self._asked = time.monotonic()
        return self._stopped()


def _sort(outcome: Outcome, job: Job, result: str) -> None:
    if result == "finished":
        outcome.finished.append(job.spec.id)
    elif result == "interrupted":
        outcome.interrupted.append(job.spec.id)
    else:
        outcome.failed[job.spec.id] = result


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a question that can be asked between steps; a second Ctrl-C is not caught."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
