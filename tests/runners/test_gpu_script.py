"""The prepared script for a GPU runs here, at smoke scale."""

import pytest

from analysis.record import Run
from tests.bench import gpu_resnet
from tests.bench.gpu_resnet import Speed, main, projection


def test_it_trains_all_methods_and_optimizers_and_projects(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_resnet, "FIRST", 1)
    speeds = main(["--smoke", "--device", "cpu", "--seconds", "0.1", "--out", str(tmp_path)])
    methods = {("sgd", method) for method in ("CE", "Flat", "Rob", "CalMO")}
    assert set(speeds) == methods | {(name, "CE") for name in ("muon", "sam", "adamw")}
    for (optimizer, _), speed in speeds.items():
        run = Run.open(speed.path)
        assert run.spec["optimizer"]["name"] == optimizer
        assert run.status == "interrupted"
        assert speed.steps >= 1
    losses = {method: Run.open(speeds["sgd", method].path).spec["loss"] for _, method in methods}
    assert (losses["Flat"]["lambda_r"], losses["Rob"]["lambda_s"]) == (0, 0)
    assert losses["CE"]["name"] == "ce"
    printed = capsys.readouterr().out
    assert "Table 2 at 150 steps, 3 seeds, 6 losses" in printed


def test_the_projection_counts_every_run_of_the_table(tmp_path):
    # One step a second for CE and half of that for the others; SAM takes twice as long.
    rates = {("sgd", "CE"): 1.0, ("sgd", "Flat"): 0.5, ("sgd", "Rob"): 0.5, ("sgd", "CalMO"): 0.5, ("sam", "CE"): 0.5}
    speeds = {key: Speed(tmp_path, 100, 100 / rate) for key, rate in rates.items()}
    hours = projection(speeds, "sgd", 1000)
    # Three losses at 1 s and three at 2 s a step, three seeds.
    assert hours == {"sgd": pytest.approx(3 * 1000 * 9 / 3600), "sam": pytest.approx(3 * 1000 * 18 / 3600)}


@pytest.mark.gpu
def test_tf32_runs_on_a_gpu(tmp_path):
    speeds = main(["--smoke", "--device", "cuda", "--tf32", "--seconds", "5", "--out", str(tmp_path)])
    assert Run.open(speeds["sgd", "CE"].path).spec["precision"] == "tf32"
