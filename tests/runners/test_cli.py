"""The command line: what is made, what it says, and the exit status of mistakes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.after import After
from analysis.record import Run, Runs
from runners.cli import main
from tests.generators import generate

ROOT = Path(__file__).parents[2]
TOML = """
dataset = { name = "digits", train_size = 60, test_size = 40 }
model = { name = "mlp", hidden = [8] }
steps = 6
[grid]
optimizer = [{ name = "gd" }]
"optimizer.lr" = [0.1, 0.2]
seed = [0, 1]
"""


def margintail(*words, cwd, **kwargs):
    command = [sys.executable, "-m", "runners.cli", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, **kwargs)


def test_an_experiment_from_run_to_figure(tmp_path):
    (tmp_path / "small.toml").write_text(TOML)
    made = margintail("run", "small.toml", "--workers", 2, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "data/runs/small" in made.stdout
    assert "Next: margintail" in made.stdout
    runs = Runs.open(tmp_path / "data/runs/small")
    assert len(runs) == 4
    assert {run.status for run in runs} == {"finished"}
    before = {run.id: (run.path / "run.json").stat().st_mtime_ns for run in runs}

    again = margintail("run", "small.toml", cwd=tmp_path)
    assert again.returncode == 0
    assert before == {run.id: (run.path / "run.json").stat().st_mtime_ns for run in runs}

    for verb in ("status", "show"):
        said = margintail(verb, "data/runs/small", cwd=tmp_path)
        assert said.returncode == 0, said.stderr
        for run in runs:
            assert run.id in said.stdout
        assert "Next:" in said.stdout
    drawn = margintail("figures", "data/runs/small", "dynamics", cwd=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    assert list((tmp_path / "data/runs/small/figures").glob("*.pdf"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "gone.toml"], "gone.toml"),
        (["run", "wrong.toml"], "stepz"),
        (["run", "small.toml", "--set", "optimizer.lr=-1"], "optimizer.lr = -1"),
        (["run", "small.toml", "--set", "nonsense"], "KEY=VALUE"),
        (["run", "small.toml", "--workers", "0"], "workers"),
        (["show", "nowhere"], "nowhere"),
        (["resume", "nowhere"], "nowhere"),
        (["figures", "nowhere"], "nowhere"),
        (["list", "optimisers"], "optimizers"),
        (["verify"], "expected one of"),
        (["verify", "nowhere"], "nowhere"),
        (["verify", "--plan", "4x3"], "4x3x300"),
        (["verify", "--frame", "gone.csv"], "gone.csv"),
        (["recalibrate", "nowhere"], "nowhere"),
        (["dance"], "dance"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_status_2(tmp_path, monkeypatch, capfd, words, said):
    (tmp_path / "small.toml").write_text(TOML)
    (tmp_path / "wrong.toml").write_text("stepz = 3\n" + TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["margintail", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    complaint = capfd.readouterr().err
    assert said in complaint
    assert "Traceback" not in complaint
    assert not (tmp_path / "data").exists()


def test_a_failed_run_is_named_and_status_1(tmp_path):
    (tmp_path / "small.toml").write_text(TOML.replace("[0.1, 0.2]", "[0.1, 1e9]").replace("steps = 6", "steps = 60"))
    result = margintail("run", "small.toml", "--set", "loss={name='mse'}", cwd=tmp_path)
    assert result.returncode == 1
    assert "too large" in result.stderr
    assert "Traceback" not in result.stderr
    statuses = sorted(run.status for run in Runs.open(tmp_path / "data/runs/small"))
    assert statuses == ["diverged", "diverged", "finished", "finished"]


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_cleanly_and_resume_goes_on(tmp_path, workers):
    (tmp_path / "long.toml").write_text(TOML.replace("steps = 6", "steps = 3000") + "[after]\nensemble = true\n")
    asked = ["--workers", str(workers), "--set", "probes.logits.every=3000"]
    command = [sys.executable, "-m", "runners.cli", "run", "long.toml", *asked]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "data/runs/long"
    deadline = time.monotonic() + 60
    while not (folder.is_dir() and any(folder.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "margintail resume" in out
    assert "Traceback" not in err
    for run in Runs.open(folder):
        assert run.status == "interrupted"
    assert After.of(Runs.open(folder)).ensemble
    short = margintail("resume", folder / next(iter(Runs.open(folder))).id, cwd=tmp_path)
    assert short.returncode == 0, short.stderr


def test_list_shows_plugins_and_settings(tmp_path):
    said = margintail("list", cwd=tmp_path)
    assert said.returncode == 0
    for word in ("muon", "bulk_sgd", "resnet20", "digits", "gn_sharpness", "demo", "mse"):
        assert word in said.stdout


def test_run_json_says_what_made_it(tmp_path):
    (tmp_path / "small.toml").write_text(TOML)
    margintail("run", "small.toml", "--set", "seed=5", cwd=tmp_path)
    run = next(iter(Runs.open(tmp_path / "data/runs/small")))
    header = json.loads((Run.open(run.path).path / "run.json").read_text())
    assert {"torch", "numpy", "python"} <= header["meta"]["versions"].keys()
    assert header["meta"]["data"]["n_train"] == 60
    assert header["meta"]["device"]


def test_recalibrate_fits_on_validation_and_reports_on_test(tmp_path):
    text = TOML.replace("test_size = 40", "test_size = 40, validation_size = 50")
    (tmp_path / "small.toml").write_text(text.replace("seed = [0, 1]", "seed = [0]"))
    asked = ["--set", "probes.logits.every=6"]
    made = margintail("run", "small.toml", "--workers", 1, *asked, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    said = margintail("recalibrate", "data/runs/small", "--method", "temperature", "--method", "isotonic", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "fitted on 50 samples of validation, reported on 40 of test" in said.stdout
    folder = tmp_path / "data/runs/small/recalibration"
    table = pd.read_csv(folder / "recalibration.csv")
    assert set(table["method"]) == {"temperature", "isotonic"}
    assert set(table["run"]) == {run.id for run in Runs.open(tmp_path / "data/runs/small")}
    assert len(list(folder.glob("*-6-temperature.json"))) == 2
    refused = margintail("recalibrate", "data/runs/small", "--fit", "test", cwd=tmp_path)
    assert refused.returncode == 2
    assert "fit_split = report_split = 'test'" in refused.stderr


def test_verify_judges_a_table_and_exits_0_whatever_the_verdict(tmp_path):
    study = generate("G5", np.random.default_rng(0)).frame()
    table = study.rename(columns={"lr": "stratum", "ece": "x", "lam": "y", "Q": "mediator"})
    table[["run", "stratum", "step", "x", "y", "mediator"]].to_csv(tmp_path / "mine.csv", index=False)
    said = margintail("verify", "--frame", "mine.csv", "--out", "verdicts", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    verdicts = pd.read_csv(tmp_path / "verdicts/verdicts.csv")
    assert verdicts.set_index("claim").loc["coupling", "outcome"] == "REFUTED"
    assert json.loads((tmp_path / "verdicts/verdicts.json").read_text())[0]["claim"] == "coupling"


def test_verify_plans_a_design(tmp_path):
    said = margintail("verify", "--plan", "4x2x60", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "smallest attainable p 0.062" in said.stdout
    assert "INCONCLUSIVE" in said.stdout


def test_bench_curvature_measures_the_users_own_network(tmp_path):
    (tmp_path / "small.toml").write_text(TOML)
    said = margintail("bench", "curvature", "small.toml", "--steps", 2, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    for method in ("margintail", "curvlinops", "PyHessian"):
        assert method in said.stdout
    assert "Measured on digits (scikit-learn), mlp, after 2 steps" in said.stdout
