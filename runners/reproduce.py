"""What the figures and tables of the paper need: which runs, which of them are missing, and what those will cost."""

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from analysis.methods import method
from analysis.record import Run
from analysis.segments import CHECKPOINTS
from runners.loop import load, train
from runners.recorder import Diverged
from runners.spec import EXPERIMENTS, RunSpec, after, read_experiment
from runners.sweep import Job, pending

RECORDS = Path("data/runs")
"""Where records go, one folder per preset, as with ``margintail run``."""

SAMPLE_SECONDS = 1.0
SAMPLE_STEPS = 30
"""A timed sample ends after as many seconds or steps, whichever comes first, but has three steps at least."""

Choice = Callable[[Sequence[Run]], Sequence[Run]]


class Planned(Run):
    """A run that need not be recorded yet: its settings, for those who choose among runs by them."""

    def __init__(self, spec: RunSpec) -> None:
        self.id = spec.id
        self.spec = spec.table()
        self.meta = {"status": "planned"}


@dataclass(frozen=True)
class Need:
    """The runs behind one figure or table.

    Attributes:
        name: of the item.
        preset: name of the experiment that makes them.
        jobs: the runs it shows, recorded or not.
    """

    name: str
    preset: str
    jobs: tuple[Job, ...]


def needs(wanted: Mapping[str, tuple[str, Choice]], settings: Mapping[str, Any] | None = None) -> list[Need]:
    """What each item needs.

    Args:
        wanted: item -> name of its preset, and what chooses the runs it shows from all of the preset's.
        settings: dotted settings that replace those of every preset.

    Raises:
        SettingError: a wrong setting, or an item that none of its preset's runs is for.
    """
    grids: dict[str, list[RunSpec]] = {}
    found = []
    for name, (preset, choice) in wanted.items():
        if preset not in grids:
            grids[preset] = read_experiment(EXPERIMENTS / f"{preset}.toml", settings)
        chosen = {run.id for run in choice([Planned(spec) for spec in grids[preset]])}
        jobs = tuple(Job(spec, RECORDS / preset / spec.id) for spec in grids[preset] if spec.id in chosen)
        found.append(Need(name, preset, jobs))
    return found


def missing(found: Iterable[Need]) -> dict[str, list[Job]]:
    """Preset -> its runs that some item needs and that are not recorded to their end, each once."""
    jobs = {job.path: (need.preset, job) for need in found for job in need.jobs}
    by_preset: dict[str, list[Job]] = {}
    for preset, job in jobs.values():
        if pending([job.spec], job.path.parent):
            by_preset.setdefault(preset, []).append(job)
    return by_preset


def without_data(found: Iterable[Need]) -> dict[str, str]:
    """Item -> why the data of its missing runs cannot be read; nothing where they can, or none is missing."""
    found = list(found)
    absent = {job.path for jobs in missing(found).values() for job in jobs}
    problems: dict[Any, str] = {}
    refused = {}
    for need in found:
        for dataset in {job.spec.dataset: None for job in need.jobs if job.path in absent}:
            if dataset not in problems:
                problems[dataset] = _problem(dataset)
            if problems[dataset]:
                refused[need.name] = problems[dataset]
    return refused


def _problem(dataset: Any) -> str:
    try:
        load(dataset)
    except ValueError as error:
        return str(error)
    return ""


def save_after(presets: Iterable[str]) -> None:
    """Leave beside the records what the presets ask for after their runs (see `runners.spec.after`)."""
    for preset in presets:
        after(EXPERIMENTS / f"{preset}.toml").save(RECORDS / preset)


@dataclass(frozen=True)
class Cost:
    """What runs of one kind take.

    Attributes:
        preset: where they come from.
        kind: optimizer and loss, such as ``"sgd, CalMO"``.
        jobs: the runs; they differ in step size, seed and steps.
        seconds: of one process, all runs together.
        size: of their records, in bytes.
    """

    preset: str
    kind: str
    jobs: tuple[Job, ...]
    seconds: float
    size: float


def costs(by_preset: Mapping[str, Sequence[Job]], show: Callable[[str], None] = lambda _: None) -> list[Cost]:
    """Time and disk of runs, from a timed sample of each kind: steps alone, and steps with each set of due probes.

    A run's time is that of its steps and of its observations at their cadences, so that what is rare counts as
    rarely as it comes. Samples are taken at the start of training, in this process alone, without the time that a
    worker needs to start.

    Args:
        by_preset: as `missing` returns it.
        show: told which kind is timed next.
    """
    observations: dict[str, Sample] = {}
    found = []
    for preset, jobs in by_preset.items():
        kinds: dict[str, list[Job]] = {}
        for job in jobs:
            kinds.setdefault(_key(job.spec, "optimizer", "loss"), []).append(job)
        for members in kinds.values():
            words = _kind(members[0].spec)
            show(f"{preset}: {words}")
            seconds, size = _price(members[0].spec, observations)
            steps = sum(job.spec.steps for job in members) / members[0].spec.steps
            found.append(Cost(preset, words, tuple(members), seconds * steps, size * steps))
    return found


@dataclass(frozen=True)
class Sample:
    """The cost of a step, or of an observation; bytes of a row of its streams, and of a checkpoint."""

    seconds: float
    row: float
    checkpoint: float


def _price(spec: RunSpec, observations: dict[str, Sample]) -> tuple[float, float]:
    """Seconds and bytes of a run; fills in what observations cost, which optimizers and losses share."""
    alone = _sample(spec, ())
    seconds, size = alone.seconds * spec.steps, alone.checkpoint
    for due, count in cadences(spec).items():
        key = f"{_key(spec)} {spec.optimizer.batch_size is None} {spec.loss.output} {sorted(due)}"
        if key not in observations:
            both = _sample(spec, due, once=count == 1)
            observations[key] = Sample(max(0.0, both.seconds - alone.seconds), both.row, both.checkpoint)
        seconds += count * observations[key].seconds
        size += count * observations[key].row
    return seconds, size


def cadences(spec: RunSpec) -> Counter[frozenset[str]]:
    """How many steps of a run each set of probes is due at; all of them are at the last."""
    probes = {name: probe for name, probe in spec.probes.items() if name != "checkpoints"}
    due = Counter(frozenset(name for name, probe in probes.items() if probe.due(step)) for step in range(spec.steps))
    due[frozenset(probes)] += 1
    del due[frozenset()]
    return due


def _sample(spec: RunSpec, due: Iterable[str], once: bool = False) -> Sample:
    """The middle time of a few steps at each of which these probes are due; ``once`` makes do with one step.

    The first of several is left out: caches are cold, and the sharpness has no eigenvector to start from.
    """
    probes = {name: spec.probes[name].model_copy(update={"every": 1, "at": None}) for name in due}
    short = spec.model_copy(
        update={"probes": {**probes, "checkpoints": spec.probes["checkpoints"]}, "steps": SAMPLE_STEPS}
    )
    started, times = time.perf_counter(), list[float]()

    def enough() -> bool:
        return len(times) >= (1 if once else 3) and (once or times[-1] - started > SAMPLE_SECONDS)

    with TemporaryDirectory() as folder:
        # The steps before a divergence cost what others do.
        with suppress(Diverged):
            train(short, folder, report=lambda step, recorder: times.append(time.perf_counter()), stop=enough)
        files = [(path, path.stat().st_size) for path in Path(folder).rglob("*") if path.is_file()]
    rows = sum(size for path, size in files if path.suffix == ".npz" and path.parent.name != CHECKPOINTS)
    steps = [later - earlier for earlier, later in pairwise(times)]
    checkpoint = max((size for path, size in files if path.parent.name == CHECKPOINTS), default=0)
    return Sample(statistics.median(steps[1:] or steps or [0.0]), rows / max(1, len(times)), checkpoint)


def _key(spec: RunSpec, *also: str) -> str:
    """Settings that decide what an observation costs and, with ``also``, what a step costs."""
    table = spec.table()
    kept = {name: table[name] for name in ("dataset", "model", "device", "dtype", "threads", "probes", *also)}
    if "optimizer" in kept:
        kept["optimizer"] = {name: value for name, value in kept["optimizer"].items() if name != "lr"}
    return json.dumps(kept, sort_keys=True)


def _kind(spec: RunSpec) -> str:
    return f"{spec.optimizer.name}, {method(Planned(spec))}"
