"""margintail reproduce: what an item needs, what is missing, what it costs, and what is made."""

import json
from collections import Counter
from functools import cache

import pandas as pd
import pytest
from typer.testing import CliRunner

import figures
from analysis.plugins import SettingError
from analysis.record import Run
from figures.paper import SCALES, choose, items
from runners import console, reproduce
from runners.cli import app
from runners.loop import train
from runners.recorder import Diverged
from runners.reproduce import Sample, cadences, costs, missing, needs, without_data
from runners.spec import EXPERIMENTS, read_experiment
from tests.runners.conftest import small_spec

DIGITS = 'dataset = { name = "digits", train_size = 40, test_size = 30, validation_size = 20, label_noise = 0.2 }\n'
PRESETS = {
    "mlp_dynamics_smoke": DIGITS
    + """
model = { name = "mlp", hidden = [4] }
steps = 4
[[grid]]
optimizer = [{ name = "gd" }, { name = "sgd", batch_size = 10 }]
"optimizer.lr" = [0.1, 0.2]
""",
    "resnet_losses_smoke": DIGITS
    + """
model = { name = "cnn", channels = [2] }
steps = 4
optimizer = { name = "sgd", lr = 0.1, batch_size = 10 }
probes = { examples = { every = 2 }, logits = { every = 2 } }
[after]
ensemble = true
[grid]
seed = [0, 1]
loss = [{ name = "ce" }, { name = "calmo" }, { name = "focal" }]
""",
    "mse_smoke": """
dataset = { name = "parquet", root = "nowhere" }
loss = { name = "mse" }
steps = 4
[grid]
optimizer = [{ name = "gd", lr = 0.1 }]
""",
}


@cache
def grid(preset):
    return read_experiment(EXPERIMENTS / f"{preset}.toml")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty working folder, and presets of a few steps in place of ours."""
    presets = tmp_path / "presets"
    presets.mkdir()
    for name, text in PRESETS.items():
        (presets / f"{name}.toml").write_text(text)
    monkeypatch.setattr(reproduce, "EXPERIMENTS", presets)
    monkeypatch.setattr(reproduce, "SAMPLE_SECONDS", 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def margintail(*words):
    # One worker is this process: to start others takes longer than all that they would do.
    return CliRunner().invoke(app, [*map(str, words), *([] if "--workers" in words else ["--workers", "1"])])


def wanted(*names, scale="smoke"):
    return {name: (item.preset(scale), item.runs) for name, item in choose(names).items()}


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")}


def paper_name(loss):
    if loss.name == "calmo":
        return {(True, True): "CalMO", (False, True): "Flat", (True, False): "Rob"}[
            loss.lambda_r > 0, loss.lambda_s > 0
        ]
    return {"ce": "CE", "mse": "MSE", "label_smoothing": "label smoothing", "focal": "focal loss"}[loss.name]


@pytest.mark.parametrize("scale", SCALES)
def test_every_item_has_a_preset_that_makes_each_run_it_selects(scale):
    for need in needs(wanted("all", scale=scale)):
        item = items()[need.name]
        specs = grid(item.preset(scale))
        optimizers, losses = ([value] if isinstance(value, str) else value for value in (
            item.select.get("optimizer", []), item.select.get("loss", [])
        ))  # fmt: skip
        chosen = [
            spec
            for spec in specs
            if (not optimizers or spec.optimizer.name in optimizers)
            and (not losses or spec.loss.name in losses)
            and (not item.methods or paper_name(spec.loss) in item.methods)
        ]
        assert [job.spec.id for job in need.jobs] == [spec.id for spec in chosen]
        assert {job.path for job in need.jobs} == {reproduce.RECORDS / item.preset(scale) / spec.id for spec in chosen}
        # No empty panel: whatever it asks for is in the grid, with several seeds.
        assert {spec.optimizer.name for spec in chosen} >= set(optimizers)
        assert {paper_name(spec.loss) for spec in chosen} >= set(item.methods)
        assert len({spec.seed for spec in chosen}) == 3


@pytest.mark.parametrize("scale", SCALES)
def test_the_presets_have_what_their_tables_compare(scale):
    def found(name):
        specs = grid(items()[name].preset(scale))
        return Counter((spec.optimizer.name, paper_name(spec.loss)) for spec in specs)

    dynamics = found("table1")
    assert {dynamics[optimizer, "CE"] for optimizer in ("gd", "sgd", "adamw", "muon", "sam")} == {12}
    assert found("figA8").keys() == dynamics.keys()
    losses = found("table2")
    optimizers = {optimizer for optimizer, _ in losses}
    assert optimizers == ({"sgd", "muon"} if scale == "laptop" else {"sgd", "muon", "sam", "adamw"})
    methods = {"CE", "CalMO", "Flat", "Rob", "label smoothing", "focal loss"}
    assert losses == {(optimizer, method): 3 for optimizer in optimizers for method in methods}


def test_the_first_line_of_each_preset_says_what_it_is():
    for path in EXPERIMENTS.glob("*.toml"):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("# ")
        for scale in ("smoke", "laptop"):
            assert (f"at {scale} scale" in first) == path.stem.endswith(f"_{scale}")
        assert ("cifar" in first.lower()) <= (grid(path.stem)[0].dataset.name != "digits")


def test_the_runs_that_are_missing_are_those_that_are_not_recorded_to_their_end(home):
    before = needs(wanted("fig1", "fig2"))
    jobs = {job.spec.id: job for need in before for job in need.jobs}
    assert [len(need.jobs) for need in before] == [2, 4]
    assert {job.path for job in missing(before)["mlp_dynamics_smoke"]} == {job.path for job in jobs.values()}
    done, stopped, diverged, absent = jobs.values()
    train(done.spec, done.path.parent)
    train(stopped.spec, stopped.path.parent, stop=lambda: True)
    train(diverged.spec, diverged.path.parent)
    (header := diverged.path / "run.json").write_text(header.read_text().replace('"finished"', '"diverged"'))
    assert Run.open(stopped.path).status == "interrupted"
    found = missing(needs(wanted("fig1", "fig2")))
    assert found == {"mlp_dynamics_smoke": [stopped, absent]}
    assert missing(needs(wanted("fig1"))) == {"mlp_dynamics_smoke": [stopped]}


def test_settings_replace_those_of_every_preset_and_make_other_runs(home):
    plain, altered = needs(wanted("fig1")), needs(wanted("fig1"), {"steps": 2})
    assert {job.spec.steps for job in altered[0].jobs} == {2}
    assert not {job.path for job in plain[0].jobs} & {job.path for job in altered[0].jobs}
    with pytest.raises(SettingError, match="stepz"):
        needs(wanted("fig1"), {"stepz": 2})
    with pytest.raises(SettingError, match="needs runs with optimizer = 'bulk_sgd'"):
        needs(wanted("figA5"))


def test_cadences_count_the_rows_of_a_record(tmp_path):
    spec = small_spec(
        steps=13,
        probes={"examples": {"every": 3}, "logits": {"every": 6}, "norms": {"at": "log"}, "robust": {"at": []}},
    )
    run = Run.open(train(spec, tmp_path))
    counted = cadences(spec)
    assert sum(counted.values()) == len(run.steps("scalars"))
    for probe, stream in {"examples": "examples_train", "logits": "logits_test", "robust": "robust_train"}.items():
        assert sum(count for due, count in counted.items() if probe in due) == len(run.steps(stream))
    norms = run.frame()["gradient_norm"].notna().sum()
    assert sum(count for due, count in counted.items() if "norms" in due) == norms


def test_a_run_costs_its_steps_and_its_observations_at_their_cadences(home, monkeypatch):
    dear = {"examples": 5.0, "logits": 11.0}

    def sample(spec, due, once=False):
        step = {"ce": 2.0, "calmo": 8.0, "focal": 3.0}[spec.loss.name]
        return Sample(step + sum(dear[name] for name in due), 100.0 * len(list(due)), 1000.0)

    monkeypatch.setattr(reproduce, "_sample", sample)
    found = {cost.kind: cost for cost in costs(missing(needs(wanted("table2"))))}
    assert list(found) == ["sgd, CE", "sgd, CalMO"]
    # Two seeds; four steps; observed at 0, 2 and 4, each time by both probes.
    assert found["sgd, CE"].seconds == 2 * (4 * 2 + 3 * 16)
    assert found["sgd, CalMO"].seconds == 2 * (4 * 8 + 3 * 16)
    assert found["sgd, CE"].size == 2 * (1000 + 3 * 200)
    assert {cost.preset for cost in found.values()} == {"resnet_losses_smoke"}


def test_the_disk_of_a_plan_is_near_what_the_runs_take(home, monkeypatch):
    monkeypatch.setattr(reproduce, "SAMPLE_SECONDS", 60)
    need = needs(wanted("fig1"), {"steps": 60})
    (cost,) = costs(missing(need))
    paths = [train(job.spec, job.path.parent) for job in need[0].jobs]
    files = [file for path in paths for file in path.rglob("*") if file.suffix == ".npz" or "checkpoints" in file.parts]
    assert cost.size == pytest.approx(sum(file.stat().st_size for file in files if file.is_file()), rel=0.5)
    assert cost.seconds > 0


def test_a_sample_of_a_run_that_diverges_ends_there(tmp_path):
    spec = small_spec({"name": "gd", "lr": 1e30}, loss={"name": "mse"}, steps=500)
    with pytest.raises(Diverged):
        train(spec, tmp_path)
    assert reproduce._sample(spec, ("examples",)).row > 0


def test_a_plan_says_what_is_missing_and_starts_nothing(home):
    said = margintail("reproduce", "fig1", "table2", "--plan", "--workers", 3)
    assert said.exit_code == 0, said.output
    assert "mlp_dynamics_smoke" in said.stdout
    assert "sgd, CalMO" in said.stdout
    assert "6 runs are missing" in said.stdout
    assert "on 3 worker processes" in said.stdout
    assert not (home / "data").exists()
    assert margintail("reproduce", "fig1").exit_code == 0
    assert "4 runs are missing" in margintail("reproduce", "fig1", "table2", "--plan").stdout
    assert "nothing is missing" in margintail("reproduce", "fig1", "--plan").stdout


def test_a_figure_and_a_table_from_nothing_and_again_from_records(home, monkeypatch):
    made = margintail("reproduce", "fig1", "tableA2")
    assert made.exit_code == 0, made.output
    assert "Made 2 of 2 figures and tables in data/reproduce/smoke, from 8 runs in data/runs." in made.stdout
    assert "Next: margintail verify data/runs/mlp_dynamics_smoke" in made.stdout
    first = stamps(home / "data/runs")
    assert len(first) == 8
    folder = home / "data/reproduce/smoke"
    for stem in ("fig1-gd", "tableA2-tableA2"):
        for ending in ("pdf", "png", "json"):
            assert (folder / f"{stem}.{ending}").stat().st_size > 0
        facts = json.loads((folder / f"{stem}.json").read_text())
        assert facts["scale"].startswith("digits (scikit-learn), label noise 0.2, 40 training samples, ")
        assert facts["scale"].endswith("; smoke scale, in place of the paper's CIFAR-10")
    assert [run.split("-")[0] for run in json.loads((folder / "fig1-gd.json").read_text())["runs"]] == ["gd", "gd"]
    table = pd.read_csv(folder / "tableA2-tableA2.csv")
    ours = table[(table["optimizer"] == "sgd") & (table["method"] == "focal") & (table["quantity"] == "test_ece")]
    assert ours["values"].tolist() == [2]
    assert (home / "data/runs/resnet_losses_smoke/after.json").is_file()

    def refuse(*_):
        raise AssertionError("a recorded run was started again")

    monkeypatch.setattr(console, "sweep", refuse)
    (folder / "fig1-gd.pdf").unlink()
    again = margintail("reproduce", "fig1", "tableA2", "--out", home / "elsewhere")
    assert again.exit_code == 0, again.output
    assert stamps(home / "data/runs") == first
    assert (home / "elsewhere/fig1-gd.pdf").is_file()
    assert not (folder / "fig1-gd.pdf").exists()


def test_records_are_shared_with_the_command_run(home, monkeypatch):
    monkeypatch.setattr("runners.arguments.EXPERIMENTS", reproduce.EXPERIMENTS)
    assert margintail("run", "mlp_dynamics_smoke").exit_code == 0
    before = stamps(home / "data/runs")
    assert len(before) == 4
    assert margintail("reproduce", "fig1").exit_code == 0
    assert stamps(home / "data/runs") == before


def test_titles_tell_of_altered_settings(home):
    assert margintail("reproduce", "fig1", "--set", "steps=3").exit_code == 0
    facts = json.loads((home / "data/reproduce/smoke/fig1-gd.json").read_text())
    assert "smoke scale with steps=3" in facts["title"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fig99"], r"item = 'fig99'.*accepted: all, fig1"),
        (["fig1", "--scale", "huge"], r"scale = 'huge'.*accepted: smoke, laptop, paper"),
        (["fig1", "--set", "stepz=3"], "stepz"),
        (["fig1", "--set", "steps"], "KEY=VALUE"),
        (["figA19"], r"dataset.root = 'nowhere'"),
        (["figA19", "--plan"], r"dataset.root = 'nowhere'"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_starts(home, words, said):
    result = margintail("reproduce", *words)
    assert isinstance(result.exception, SettingError)
    with pytest.raises(SettingError, match=said):
        raise result.exception
    assert "\n" not in str(result.exception)
    assert not (home / "data").exists()


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_data_that_are_not_there_are_named_with_how_to_provide_them(tmp_path, monkeypatch, scale):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARGINTAIL_DATA", raising=False)
    found = needs(wanted("all", scale=scale))
    refused = without_data(found)
    assert refused.keys() == items().keys()
    for reason in refused.values():
        assert ("download = true" in reason) if scale == "paper" else ("MARGINTAIL_DATA is not set" in reason)
    for plan in ([], ["--plan"]):
        result = margintail("reproduce", "fig1", "--scale", scale, *plan)
        assert isinstance(result.exception, SettingError)
        assert "dataset.root" in str(result.exception)


def test_what_cannot_be_made_does_not_stop_the_rest(home, monkeypatch):
    whole = figures.draw

    def draw(name, *arguments):
        if name == "fig2":
            raise SettingError("phase: no run has recorded both")
        return whole(name, *arguments)

    monkeypatch.setattr(figures, "draw", draw)
    result = margintail("reproduce", "figA19", "fig2", "fig1")
    assert result.exit_code == 1
    assert "error: figA19: dataset.root = 'nowhere'" in result.stderr
    assert "error: fig2: phase: no run has recorded both" in result.stderr
    assert "Made 1 of 2" in result.stdout
    assert (home / "data/reproduce/smoke/fig1-gd.pdf").is_file()


def test_an_item_that_lacks_failed_runs_is_drawn_without_them_and_said_to_be(home):
    path = reproduce.EXPERIMENTS / "mlp_dynamics_smoke.toml"
    path.write_text(
        path.read_text() + '[[grid]]\noptimizer = [{ name = "gd", lr = 0.3 }]\n"dataset.train_size" = [5000]'
    )
    result = margintail("reproduce", "fig1")
    # The data check comes first, and names the size that cannot be.
    assert isinstance(result.exception, SettingError)
    path.write_text(
        PRESETS["mlp_dynamics_smoke"] + '[[grid]]\noptimizer = [{ name = "sgd", lr = 1.0, batch_size = 41 }]'
    )
    result = margintail("reproduce", "figA1", "fig1")
    assert result.exit_code == 1
    assert "error: figA1: drawn without 1 of its 3 runs to their end" in result.stderr
    assert "error: fig1" not in result.stderr
    assert "Made 2 of 2" in result.stdout


@pytest.mark.slow
def test_all_items_at_smoke_scale(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = margintail("reproduce", "all", "--set", "steps=6", "--workers", 2)
    assert result.exit_code == 0, result.output
    made = {path.stem.split("-")[0] for path in (tmp_path / "data/reproduce/smoke").glob("*.pdf")}
    assert made == items().keys()
    for path in (tmp_path / "data/reproduce/smoke").glob("*.json"):
        assert json.loads(path.read_text())["scale"].startswith("digits (scikit-learn), label noise 0.2")
    before = stamps(tmp_path / "data/runs")
    assert margintail("reproduce", "all", "--set", "steps=6", "--workers", 2).exit_code == 0
    assert stamps(tmp_path / "data/runs") == before
