"""Specs: what is accepted, what a mistake answers, and what the id depends on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.plugins import SettingError
from runners.spec import EXPERIMENTS, RunSpec, after, read_experiment

BASE = {
    "dataset": {"name": "digits", "train_size": 100, "test_size": 50},
    "model": {"name": "mlp", "hidden": [8]},
    "optimizer": {"name": "gd", "lr": 0.1},
    "steps": 5,
}


def changed(**settings):
    return {**BASE, **settings}


def test_defaults_are_resolved_and_frozen():
    spec = RunSpec.from_dict(BASE)
    assert spec.loss.name == "ce"
    assert spec.seed == 0
    assert set(spec.probes) == {"examples", "gn_sharpness", "norms", "checkpoints"}
    with pytest.raises(Exception, match="frozen"):
        spec.steps = 6


def test_a_table_round_trips():
    spec = RunSpec.from_dict(BASE)
    again = RunSpec.from_dict(spec.table())
    assert again == spec
    assert again.id == spec.id


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stepz": 5}, ["stepz", "unknown setting", "steps"]),
        ({"steps": "5"}, ["steps", "'5'", "integer"]),
        ({"steps": 0}, ["steps", "0", "greater than or equal to 1"]),
        ({"steps": True}, ["steps", "True", "integer"]),
        ({"optimizer": {"name": "gdd", "lr": 0.1}}, ["optimizer.name", "gdd", "adamw", "muon"]),
        ({"optimizer": {"name": "gd", "lr": -0.1}}, ["optimizer.lr", "-0.1", "greater than 0"]),
        ({"optimizer": {"name": "gd", "lr": float("nan")}}, ["optimizer.lr", "nan", "finite"]),
        ({"optimizer": {"name": "gd"}}, ["optimizer.lr", "required"]),
        ({"optimizer": "gd"}, ["optimizer", "'gd'", "table"]),
        ({"optimizer": {"name": "gd", "lr": 0.1, "rho": 1.0}}, ["optimizer.rho", "unknown", "lr"]),
        ({"model": {"name": "mlp", "hidden": [0]}}, ["model.hidden", "0", "greater than or equal to 1"]),
        ({"model": {"name": "nowhere:Net"}}, ["model.name", "nowhere"]),
        ({"probes": {"exampels": {}}}, ["probes.exampels", "examples"]),
        ({"probes": {"examples": {"every": 0}}}, ["probes.examples.every", "0"]),
        ({"probes": {"examples": 10}}, ["probes.examples", "10", "table"]),
        ({"dataset": {"name": "digits", "label_noise": 1.5}}, ["dataset.label_noise", "1.5"]),
    ],
)
def test_a_mistake_is_one_sentence_naming_setting_and_value(settings, words):
    with pytest.raises(SettingError) as caught:
        RunSpec.from_dict(changed(**settings))
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


def test_a_step_size_can_be_named_by_its_edge():
    by_edge = RunSpec.from_dict(changed(optimizer={"name": "gd", "lr": "2/30"}))
    assert by_edge.optimizer.lr == 2 / 30
    assert by_edge.id == RunSpec.from_dict(changed(optimizer={"name": "gd", "lr": 2 / 30})).id
    for wrong in ("2/0", "2/30/1", "-2/30", "fast"):
        with pytest.raises(SettingError, match=r"optimizer\.lr"):
            RunSpec.from_dict(changed(optimizer={"name": "gd", "lr": wrong}))


def test_missing_tables_are_named():
    for key in ("dataset", "optimizer"):
        settings = {name: value for name, value in BASE.items() if name != key}
        with pytest.raises(SettingError, match=key):
            RunSpec.from_dict(settings)


@given(seed=st.integers(0, 1000), lr=st.floats(1e-6, 10), steps=st.integers(1, 1000))
def test_the_id_changes_with_every_setting(seed, lr, steps):
    spec = RunSpec.from_dict(changed(seed=seed, steps=steps, optimizer={"name": "gd", "lr": lr}))
    assert spec.id.startswith(f"gd-lr{lr:g}-s{seed}-")
    assert spec.id == RunSpec.from_dict(spec.table()).id
    for other in (
        changed(seed=seed + 1, steps=steps, optimizer={"name": "gd", "lr": lr}),
        changed(seed=seed, steps=steps + 1, optimizer={"name": "gd", "lr": lr}),
        changed(seed=seed, steps=steps, optimizer={"name": "sgd", "lr": lr}),
    ):
        assert RunSpec.from_dict(other).id != spec.id


def test_a_changed_default_changes_the_id():
    resolved = RunSpec.from_dict(BASE).table()
    resolved["model"]["activation"] = "relu"
    assert RunSpec.from_dict(resolved).id != RunSpec.from_dict(BASE).id


TOML = """
dataset = { name = "digits", train_size = 100 }
steps = 5
[[grid]]
optimizer = [{ name = "gd" }, { name = "sgd" }]
"optimizer.lr" = [0.1, 0.2]
seed = [0, 1, 2]
[[grid]]
optimizer = [{ name = "gd", lr = 0.1 }, { name = "adamw", lr = 0.001 }]
"""


def test_grids_span_products_without_repetitions(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(TOML)
    specs = read_experiment(path)
    assert len(specs) == 2 * 2 * 3 + 1
    assert len({spec.id for spec in specs}) == len(specs)
    points = {(spec.optimizer.name, spec.optimizer.lr, spec.seed) for spec in specs}
    assert ("sgd", 0.2, 2) in points
    assert ("adamw", 0.001, 0) in points


def test_overrides_reach_into_tables(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(TOML)
    specs = read_experiment(path, {"steps": 3, "dataset.label_noise": 0.5})
    assert {spec.steps for spec in specs} == {3}
    assert {spec.dataset.label_noise for spec in specs} == {0.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps = ", ["not valid TOML"]),
        ("[grid]\nseed = 3", ["grid.seed", "3", "list"]),
        ("[grid]\nseed = []", ["grid.seed", "at least one"]),
        ("grid = 3", ["grid", "3", "table"]),
        ('steps = 5\n[grid]\n"steps.x" = [1]', ["steps", "5", "table"]),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(SettingError) as caught:
        read_experiment(path)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"gone\.toml.*cannot be read"):
        read_experiment(tmp_path / "gone.toml")


def test_one_run_from_a_file_with_many_is_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(TOML)
    with pytest.raises(SettingError, match="13 runs"):
        RunSpec.from_toml(path)


def test_after_is_read_and_no_part_of_a_run(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(TOML)
    plain = [spec.id for spec in read_experiment(path)]
    assert not after(path)
    path.write_text(
        TOML + '[after]\nensemble = true\ncalibrators = ["temperature", { name = "histogram", bins = 5 }]\n'
    )
    assert [spec.id for spec in read_experiment(path)] == plain
    wanted = after(path)
    assert wanted.ensemble
    assert wanted.calibrators == ("temperature", {"name": "histogram", "bins": 5})


def test_after_needs_runs_that_record_what_it_takes(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(TOML + "[after]\nensemble = true\n")
    with pytest.raises(SettingError, match=r"after: run gd-\S+ would not record its logits; expected probes\.logits"):
        after(path, read_experiment(path))
    logits = {"probes.logits": {}}
    assert after(path, read_experiment(path, logits)).ensemble
    path.write_text(TOML + '[after]\ncalibrators = ["temperature"]\n')
    with pytest.raises(SettingError, match=r"after\.calibrators: run gd-\S+ has no validation split.*validation_size"):
        after(path, read_experiment(path, logits))
    assert after(path, read_experiment(path, {**logits, "dataset.validation_size": 20})).calibrators
    path.write_text(TOML)
    assert not after(path, read_experiment(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("after = 3\n", ["after", "3", "table"]),
        ('after = { calibrators = ["temperatur"] }\n', ["after.calibrators", "temperatur", "isotonic"]),
        ("after = { ensembel = true }\n", ["after.ensembel", "unknown setting", "ensemble"]),
    ],
)
def test_a_mistake_in_after_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "x.toml"
    path.write_text(text + TOML)
    with pytest.raises(SettingError) as caught:
        after(path)
    for word in words:
        assert word in str(caught.value)


def test_a_plugin_outside_the_repository(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text(
        "from runners.optimizers.gd import *\n"
        "from runners.optimizers import Optimizer\n"
        "import torch\n"
        "class Mine(Optimizer):\n"
        "    nu: float = 0.5\n"
        "    def build(self, params, objective):\n"
        "        return torch.optim.SGD(params, lr=self.lr)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = RunSpec.from_dict(changed(optimizer={"name": "elsewhere:Mine", "lr": 0.1}))
    assert spec.table()["optimizer"] == {"name": "elsewhere:Mine", "lr": 0.1, "batch_size": None, "nu": 0.5}
    assert spec.id.startswith("Mine-lr0.1-s0-")


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_preset_reads_and_says_what_it_is(path):
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert read_experiment(path)


def test_the_demo_has_the_runs_that_the_statistics_need():
    specs = read_experiment(EXPERIMENTS / "demo.toml")
    for optimizer in ("gd", "sgd", "adamw", "muon", "sam"):
        runs = [spec for spec in specs if spec.optimizer.name == optimizer]
        assert len({spec.optimizer.lr for spec in runs}) == 4
        assert len(runs) == 4 * 3
    assert {spec.steps for spec in specs} == {300}
    assert {spec.probes["gn_sharpness"].every for spec in specs} == {1}
