"""The command line: margintail VERB. The only file of the runners that may draw."""

import sys
import tomllib
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

import analysis
import figures
from analysis import power
from analysis.claims import CLAIMS
from analysis.plugins import Plugin, Registry, SettingError
from analysis.recalibrate import recalibrate_run
from analysis.recalibration import RECALIBRATIONS
from analysis.record import RecordError, Run, Runs
from analysis.theory import verify_theory
from analysis.verdicts import write_verdicts
from figures.kinds import KINDS
from runners.console import complain, console, print_frame, print_result, print_runs, print_verdicts, say
from runners.curvature.bench import compare, render
from runners.datasets import DATASETS
from runners.loop import Training, arithmetic, load, spec_of
from runners.losses import LOSSES
from runners.models import MODELS
from runners.optimizers import OPTIMIZERS
from runners.passes import in_evaluation
from runners.probes import PROBES
from runners.progress import display
from runners.spec import EXPERIMENTS, RunSpec, read_experiment
from runners.sweep import Job, Outcome, default_workers, pending, sweep

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
    path = _experiment(experiment)
    folder = out or Path("data/runs") / path.stem
    _run(read_experiment(path, dict(_setting(word) for word in settings or [])), folder, workers)
    print_runs(Runs.open(folder))
    say(f"The records are in {folder}.", f"Next: margintail figures {folder}, or margintail report {folder}.")


@app.command()
def resume(path: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")], workers: Workers = None) -> None:
    """Go on with runs that were interrupted or killed."""
    runs = _open(path)
    jobs = [Job(spec_of(run), run.path) for run in runs if run.status not in ("finished", "diverged")]
    if not jobs:
        say(f"Every run in {path} is finished.", f"Next: margintail show {path}.")
        return
    _sweep(jobs, workers)
    say(f"Finished the {len(jobs)} runs left in {path}.", f"Next: margintail show {path}.")


@app.command()
def status(path: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")]) -> None:
    """Say which runs are finished, under way, interrupted or failed."""
    runs = _open(path)
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
    runs = _open(path)
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
    made = figures.draw(name, _open(path), out or path / "figures")
    say(f"Drew {made}, beside its PNG and a JSON that names the runs.", f"Next: margintail report {path}.")


@app.command()
def report(
    path: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report; default: PATH.")] = None,
) -> None:
    """Write one HTML page with the figures and numbers of all runs."""
    page = figures.report(_open(path), out or path)
    say(f"Wrote {page}.", "Next: open it in a browser; it needs no network.")


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
        print_result(power.plan(*_design(plan)))
        say("Next: margintail run EXPERIMENT with such a grid, then margintail verify data/runs/EXPERIMENT.")
        return
    if theory:
        result = verify_theory()
        print_result(result)
        if not result.holds:
            raise typer.Exit(1)
        say("Next: margintail verify data/runs/demo judges what was measured.")
        return
    verdicts = analysis.verify(_open(path) if path is not None else _table(frame))
    print_verdicts(verdicts)
    as_json, as_csv = write_verdicts(verdicts, out or (path if path is not None else Path(".")))
    say(
        f"The verdicts, each with its reason, are in {as_json} and {as_csv}.",
        f"Next: margintail report {path or 'RUNS'}.",
    )


def _design(words: str) -> tuple[int, int, int]:
    counts = words.lower().split("x")
    if len(counts) != 3 or not all(count.isdigit() for count in counts):
        raise SettingError(f"--plan {words!r}: expected LEARNING_RATESxSEEDSxSTEPS, such as 4x3x300")
    rates, seeds, steps = map(int, counts)
    return rates, seeds, steps


def _table(path: Path | None) -> pd.DataFrame:
    try:
        return pd.read_csv(path)  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        raise SettingError(f"--frame {str(path)!r}: cannot be read as CSV ({error})") from None


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
    runs = _open(path)
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
    spec = read_experiment(_experiment(experiment))[0]
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
        table = Table("name", "settings", "what it is", title=each, title_justify="left", box=SIMPLE_HEAD)
        if each == "experiments":
            for path in sorted(EXPERIMENTS.glob("*.toml")):
                table.add_row(path.stem, "", escape(path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")))
        else:
            for name in REGISTRIES[each].names():
                plugin = REGISTRIES[each].get(name)
                table.add_row(name, escape(_settings_of(plugin)), escape(_first_line(plugin)))
        console.print(table)
    say("Next: margintail run EXPERIMENT, where EXPERIMENT is a name above or a TOML file of your own.")


def _settings_of(plugin: type[Plugin]) -> str:
    return ", ".join(
        name if field.is_required() else f"{name} = {field.default}" for name, field in plugin.model_fields.items()
    )


def _first_line(plugin: type[Plugin]) -> str:
    return (plugin.__doc__ or "").strip().splitlines()[0]


def _experiment(name: str) -> Path:
    preset = EXPERIMENTS / f"{name}.toml"
    if preset.is_file():
        return preset
    if not Path(name).is_file():
        known = ", ".join(sorted(path.stem for path in EXPERIMENTS.glob("*.toml")))
        raise SettingError(f"experiment = {name!r}: no such file or preset; accepted: a TOML file, or one of {known}")
    return Path(name)


def _setting(word: str) -> tuple[str, object]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise SettingError(f"--set {word!r}: expected KEY=VALUE, such as optimizer.lr=0.1")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _run(specs: list[RunSpec], folder: Path, workers: int | None) -> None:
    for dataset in {spec.dataset: None for spec in specs}:
        load(dataset)
    jobs = pending(specs, folder)
    if jobs:
        _sweep(jobs, workers)


def _sweep(jobs: list[Job], workers: int | None) -> Outcome:
    """Run the jobs under a progress bar.

    Raises:
        typer.Exit: 130 after Ctrl-C, 1 if a run failed.
    """
    folder = jobs[0].path.parent
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
    if outcome.failed:
        say(f"{len(outcome.failed)} of {len(jobs)} runs failed; what they recorded is in {folder}.")
        raise typer.Exit(1)
    return outcome


def _open(path: Path) -> Runs:
    if not path.is_dir():
        raise SettingError(f"path = {str(path)!r}: no such folder; expected a run, or a folder of runs")
    runs = Runs.open(path)
    if not len(runs):
        raise SettingError(f"path = {str(path)!r}: holds no run; expected a run, or a folder of runs")
    return runs


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
