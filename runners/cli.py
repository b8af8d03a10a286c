"""The command line: margintail VERB. The only file of the runners that may draw."""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.markup import escape

import analysis
import figures
from analysis import power
from analysis.claims import CLAIMS
from analysis.plugins import Registry, SettingError
from analysis.recalibrate import recalibrate_run
from analysis.recalibration import RECALIBRATIONS
from analysis.record import RecordError, Run, Runs
from analysis.theory import verify_theory
from analysis.verdicts import write_verdicts
from figures.kinds import KINDS
from figures.paper import SCALES, choose
from runners.arguments import design, experiment_path, frame_of, open_runs, overrides
from runners.arithmetic import arithmetic
from runners.console import (
    complain,
    complete,
    console,
    make,
    print_costs,
    print_experiments,
    print_frame,
    print_items,
    print_plugins,
    print_result,
    print_runs,
    print_verdicts,
    say,
)
from runners.curvature.bench import compare, render
from runners.datasets import DATASETS
from runners.loop import Training, load, spec_of
from runners.losses import LOSSES
from runners.models import MODELS
from runners.optimizers import OPTIMIZERS
from runners.passes import in_evaluation
from runners.probes import PROBES
from runners.reproduce import RECORDS, Need, costs, missing, needs, save_after, without_data
from runners.spec import EXPERIMENTS, RunSpec, after, read_experiment
from runners.sweep import Job, default_workers, pending

REGISTRIES: dict[str, Registry] = {
    "optimizers": OPTIMIZERS,
    "losses": LOSSES,
    "models": MODELS,
    "datasets": DATASETS,
    "probes": PROBES,
    "calibrators": RECALIBRATIONS,
    "claims": CLAIMS,
    "figures": KINDS,
}

app = typer.Typer(
    help="Record how calibration, margins and curvature move together in training, and test what governs them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes; default: cores / threads of a run.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the records; default: data/runs/NAME.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a setting, such as --set steps=20 or --set optimizer.lr=0.1."),
]


bench = typer.Typer(help="Measure what things cost.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@app.command()
def demo(out: Out = None, workers: Workers = None) -> None:
    """Train the embedded experiment on scikit-learn's digits, and end with a report to look at."""
    folder = out or Path("data/runs/demo")
    _run(read_experiment(EXPERIMENTS / "demo.toml"), folder, workers)
    runs = Runs.open(folder)
    print_runs(runs)
    page = figures.report(runs, folder)
    say(
        f"{len(runs)} runs are in {folder}.",
        f"The report is {page}: open it in a browser.",
        "Next: margintail show RUN for one run, margintail run --help for an experiment of your own.",
    )


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a name from `margintail list experiments`.")],
    out: Out = None,
    workers: Workers = None,
    settings: Settings = None,
) -> None:
    """Make the runs of an experiment that are not recorded yet."""
    path = experiment_path(experiment)
    folder = out or RECORDS / path.stem
    specs = read_experiment(path, overrides(settings))
    wanted = after(path, specs)
    try:
        _run(specs, folder, workers)
    finally:
        # Runs that were stopped, and those that `resume` finishes, are shown with what the experiment asked for too.
        wanted.save(folder)
    print_runs(Runs.open(folder))
    say(f"The records are in {folder}.", f"Next: margintail figures {folder}, or margintail report {folder}.")


@app.command()
def resume(path: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")], workers: Workers = None) -> None:
    """Go on with runs that were interrupted or killed."""
    runs = open_runs(path)
    jobs = [Job(spec_of(run), run.path) for run in runs if run.status not in ("finished", "diverged")]
    if not jobs:
        say(f"Every run in {path} is finished.", f"Next: margintail show {path}.")
        return
    complete(jobs, workers)
    say(f"Finished the {len(jobs)} runs left in {path}.", f"Next: margintail show {path}.")


@app.command()
def status(path: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")]) -> None:
    """Say which runs are finished, under way, interrupted or failed."""
    runs = open_runs(path)
    table = runs.table()
    print_frame(table[["run", "status", "step", "steps"]])
    for problem in runs.problems:
        console.print(f"unreadable: {problem}", markup=False)
    counts = ", ".join(f"{count} {name}" for name, count in table["status"].value_counts().items())
    unfinished = [run for run in runs if run.status != "finished"]
    say(
        f"{len(runs)} runs in {path}: {counts}.",
        f"Next: margintail {'resume' if unfinished else 'show'} {path}.",
    )


@app.command()
def show(path: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")]) -> None:
    """Print the peaks of ECE and sharpness, the final accuracy and the correlation of each run."""
    runs = open_runs(path)
    print_runs(runs)
    if len(runs) == 1:
        only: Run = runs[0]
        console.print(f"streams: {', '.join(only.streams)}", markup=False)
    say(f"{len(runs)} runs in {path}.", f"Next: margintail figures {path}, or margintail report {path}.")


@app.command("figures")
def draw_figures(
    path: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")],
    name: Annotated[str, typer.Argument(help="A figure, from `margintail list figures`.")] = "dynamics",
    out: Annotated[Path | None, typer.Option(help="Folder of the figures; default: PATH/figures.")] = None,
) -> None:
    """Draw a figure from records."""
    made = figures.draw(name, open_runs(path), out or path / "figures")
    say(f"Drew {made}, beside its PNG and a JSON that names the runs.", f"Next: margintail report {path}.")


@app.command()
def report(
    path: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report; default: PATH.")] = None,
) -> None:
    """Write one HTML page with the figures and numbers of all runs."""
    page = figures.report(open_runs(path), out or path)
    say(f"Wrote {page}.", "Next: open it in a browser; it needs no network.")


@app.command()
def reproduce(
    items: Annotated[list[str], typer.Argument(help="Figures and tables of the paper: fig1, table2, ..., or all.")],
    scale: Annotated[str, typer.Option(help=f"One of {', '.join(SCALES)}.")] = "smoke",
    plan: Annotated[bool, typer.Option("--plan", help="Say what is missing, how long it takes and how large.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the figures; default: data/reproduce/SCALE.")] = None,
    workers: Workers = None,
    settings: Settings = None,
) -> None:
    """Make the runs that figures and tables of the paper need and that are not recorded, and draw them."""
    chosen = choose(items)
    wanted = needs({name: (item.preset(scale), item.runs) for name, item in chosen.items()}, overrides(settings))
    failed = without_data(wanted)
    if len(failed) == len(wanted):
        raise SettingError(next(iter(failed.values())))
    possible = [need for need in wanted if need.name not in failed]
    absent = missing(possible)
    jobs = [job for some in absent.values() for job in some]
    count = workers or default_workers(job.spec for need in possible for job in need.jobs)
    if plan:
        with console.status("timing a few steps of each kind of run") as line:
            print_costs(costs(absent, lambda kind: line.update(f"timing {kind}")), count)
        say("Next: the same command without --plan.")
    else:
        try:
            if jobs:
                make(jobs, count)
        finally:
            save_after({need.preset for need in possible})
        words = f"{scale} scale" + (f" with {', '.join(settings)}" if settings else "")
        folder = out or Path("data/reproduce") / scale
        failed |= _draw_items(possible, folder, words, count)
    for name, reason in failed.items():
        complain(f"{name}: {reason}")
    if failed:
        raise typer.Exit(1)


def _draw_items(found: list[Need], folder: Path, scale: str, workers: int) -> dict[str, str]:
    """Draw each item from its records, and say what was made; returns why an item could not be made, or not in full."""
    _opened.cache_clear()
    paths = {need.name: [job.path for job in need.jobs if job.path.exists()] for need in found}
    tasks = [(name, some, folder, scale) for name, some in paths.items()]
    if workers > 1 and len(tasks) > workers:
        # Large shares: what a process has computed of a record serves the next item.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            drawn = list(pool.map(_drawn, *zip(*tasks, strict=True), chunksize=-(-len(tasks) // (2 * workers))))
    else:
        drawn = [_drawn(*task) for task in tasks]
    made = {name: result for name, result in zip(paths, drawn, strict=True) if isinstance(result, Path)}
    failed = {name: result for name, result in zip(paths, drawn, strict=True) if isinstance(result, str)}
    absent = {job.path for jobs in missing(found).values() for job in jobs}
    for need in found:
        if need.name in made and (lacking := sum(job.path in absent for job in need.jobs)):
            failed[need.name] = f"drawn without {lacking} of its {len(need.jobs)} runs to their end, as they failed"
    print_items({name: (choose([name])[name].title, path) for name, path in made.items()})
    count = len({path for some in paths.values() for path in some})
    first = RECORDS / found[0].preset
    say(
        f"Made {len(made)} of {len(found)} figures and tables in {folder}, from {count} runs in {RECORDS}.",
        f"Next: margintail verify {first}, or margintail report {first}.",
    )
    return failed


def _drawn(name: str, paths: list[Path], folder: Path, scale: str) -> Path | str:
    """Where an item was drawn, or why it could not be."""
    try:
        return figures.draw(name, [_opened(path) for path in paths], folder, scale)
    except (SettingError, RecordError) as error:
        return str(error)
    except Exception as error:  # Whatever a figure trips over in a run that ended badly: the others are drawn.
        return f"{type(error).__name__}: {error}"


@cache
def _opened(path: Path) -> Run:
    return Run.open(path)


@app.command()
def verify(
    path: Annotated[Path | None, typer.Argument(help="A folder of runs.")] = None,
    frame: Annotated[
        Path | None, typer.Option(help="A CSV of your own: run, stratum, step, x, y and, if there is one, mediator.")
    ] = None,
    plan: Annotated[
        str | None, typer.Option(help="A design instead of data: learning rates x seeds x steps, such as 4x3x300.")
    ] = None,
    theory: Annotated[bool, typer.Option("--theory", help="The paper's inequalities, on random cases.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of verdicts.json and verdicts.csv; default: PATH.")] = None,
) -> None:
    """Judge each claim on records: SUPPORTED, REFUTED or INCONCLUSIVE. The exit status is 0 whatever the verdicts."""
    choices = {"PATH": path, "--frame": frame, "--plan": plan, "--theory": theory or None}
    given = [name for name, value in choices.items() if value is not None]
    if len(given) != 1:
        raise SettingError(f"verify: {' and '.join(given) or 'nothing'} given; expected one of {', '.join(choices)}")
    if plan is not None:
        print_result(power.plan(*design(plan)))
        say("Next: margintail run EXPERIMENT with such a grid, then margintail verify data/runs/EXPERIMENT.")
        return
    if theory:
        result = verify_theory()
        print_result(result)
        if not result.holds:
            raise typer.Exit(1)
        say("Next: margintail verify data/runs/demo judges what was measured.")
        return
    verdicts = analysis.verify(open_runs(path) if path is not None else frame_of(frame))
    print_verdicts(verdicts)
    as_json, as_csv = write_verdicts(verdicts, out or (path if path is not None else Path(".")))
    say(
        f"The verdicts, each with its reason, are in {as_json} and {as_csv}.",
        f"Next: margintail report {path or 'RUNS'}.",
    )


@app.command()
def recalibrate(
    path: Annotated[Path, typer.Argument(help="A run, or a folder of runs, recorded with the probe logits.")],
    method: Annotated[
        list[str] | None, typer.Option(help="Calibrators, from `margintail list calibrators`; default: all.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Metrics; default: ece, nll, brier, accuracy.")] = None,
    fit: Annotated[str, typer.Option(help="Split to fit on.")] = "validation",
    on: Annotated[str, typer.Option(help="Split to report on.")] = "test",
    trajectory: Annotated[bool, typer.Option(help="Fit and report at every recorded step, not only the last.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; default: PATH/recalibration.")] = None,
) -> None:
    """Fit post-hoc calibrators on one split and report on another, before and after."""
    methods = method or RECALIBRATIONS.names()
    metrics = metric or ["ece", "nll", "brier", "accuracy"]
    runs = open_runs(path)
    tables = {
        run.id: recalibrate_run(run, methods, metrics, fit_split=fit, report_split=on, every_step=trajectory)
        for run in runs
    }
    folder = out or path / "recalibration"
    folder.mkdir(parents=True, exist_ok=True)
    frames = [table.to_frame().assign(run=run_id) for run_id, table in tables.items()]
    pd.concat(frames).to_csv(folder / "recalibration.csv", index=False)
    for run_id, table in tables.items():
        console.rule(escape(run_id), align="left")
        print_result(table)
        for (step, name), calibrator in table.calibrators.items():
            file = folder / f"{run_id}-{step}-{name.replace(' ', '-')}.json"
            file.write_text(calibrator.to_json(), encoding="utf-8")
    say(
        f"The table is {folder / 'recalibration.csv'}; each fitted calibrator lies beside it as JSON.",
        "Next: analysis.recalibration.Calibrator.from_json reads one, and calls on logits.",
    )


@bench.command("curvature")
def bench_curvature(
    experiment: Annotated[
        str, typer.Argument(help="A TOML file or preset; its first run gives network and data.")
    ] = "demo",
    steps: Annotated[int, typer.Option(min=0, help="Training steps before the measurement.")] = 50,
) -> None:
    """What lambda_max costs here and in other libraries, in training steps of your own network, with accuracy."""
    spec = read_experiment(experiment_path(experiment))[0]
    with arithmetic(spec):
        training = Training(spec)
        for _ in range(steps):
            training.step(None)
        samples = training.data.splits["train"]
        with in_evaluation(training.model):
            rows = compare(training.model, samples.x, samples.y, training.loss, spec.optimizer.lr)
    console.print(render(rows), markup=False, highlight=False, soft_wrap=True)
    absent = ", ".join(row.method for row in rows if row.absent)
    say(
        f"Measured on {training.data.label}, {spec.model.name}, after {steps} steps. Absent: {absent or 'none'}.",
        "Next: pip install 'margintail[peers]' for the peers that are missing.",
    )


@app.command("list")
def list_plugins(
    kind: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join([*REGISTRIES, 'experiments'])}; default: all.")
    ] = None,
) -> None:
    """List what a spec can name, with its settings."""
    kinds = [*REGISTRIES, "experiments"]
    if kind is not None and kind not in kinds:
        raise SettingError(f"kind = {kind!r}: nothing of that kind to list; accepted: {', '.join(kinds)}")
    for each in kinds if kind is None else [kind]:
        if each == "experiments":
            print_experiments()
        else:
            print_plugins(each, REGISTRIES[each])
    say("Next: margintail run EXPERIMENT, where EXPERIMENT is a name above or a TOML file of your own.")


def _run(specs: list[RunSpec], folder: Path, workers: int | None) -> None:
    for dataset in {spec.dataset: None for spec in specs}:
        load(dataset)
    jobs = pending(specs, folder)
    if jobs:
        complete(jobs, workers)


def main() -> None:
    """Run the command line. Exit status: 0, 2 for a user's mistake, 1 for a failure, 130 after Ctrl-C."""
    try:
        app()
    except SettingError as mistake:
        complain(str(mistake))
        sys.exit(2)
    except RecordError as failure:
        complain(str(failure))
        sys.exit(1)


if __name__ == "__main__":
    main()
