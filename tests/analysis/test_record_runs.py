"""Runs: a folder of records, some of which may be broken."""

import numpy as np
import pytest

from analysis import Run, Runs
from analysis.plugins import SettingError
from analysis.record import RecordError, Writer
from tests.analysis.record_samples import append, header


@pytest.fixture
def folder(tmp_path):
    """Four runs in a tree, one of which has recorded nothing yet."""
    for experiment, optimizer, seed in [("x", "gd", 0), ("x", "gd", 1), ("y", "sam", 0)]:
        name = f"{optimizer}-s{seed}"
        table = {"name": optimizer, "lr": 0.1 if optimizer == "gd" else 0.3}
        if optimizer == "sam":
            table["rho"] = 0.05
        with Writer.create(tmp_path / experiment / name, header(name, optimizer=table, seed=seed)) as writer:
            append(writer, range(4 + seed))
            writer.flush()
            writer.update(status="finished")
    Writer.create(tmp_path / "y" / "empty", header("empty")).close()
    return tmp_path


def ids(runs):
    return [run.id for run in runs]


def test_one_run_an_experiment_or_a_tree(folder):
    inside = folder / "x" / "gd-s0" / "copy"
    inside.mkdir()
    (inside / "run.json").write_bytes((folder / "y" / "sam-s0" / "run.json").read_bytes())
    assert ids(Runs.open(folder / "x" / "gd-s0")) == ["gd-s0"]
    assert ids(Runs.open(folder / "x")) == ["gd-s0", "gd-s1"]
    runs = Runs.open(str(folder))
    assert ids(runs) == ["gd-s0", "gd-s1", "empty", "sam-s0"]
    assert len(runs) == 4
    assert isinstance(runs[0], Run)
    assert runs["sam-s0"].setting("optimizer.rho") == 0.05
    assert ids(runs[1:3]) == ["gd-s1", "empty"]
    with pytest.raises(SettingError, match="run 'gd-s7': not among these; there are: gd-s0, gd-s1"):
        runs["gd-s7"]
    with pytest.raises(RecordError, match="no such folder"):
        Runs.open(folder / "z")


def test_a_long_frame(folder):
    frame = Runs.open(folder).frame()
    assert list(frame.columns[:8]) == ["run", "optimizer", "lr", "loss", "seed", "dataset", "model", "step"]
    assert frame.groupby("run")["step"].max().to_dict() == {"gd-s0": 3, "gd-s1": 4, "sam-s0": 3}
    assert set(frame.loc[frame["optimizer"] == "sam", "lr"]) == {0.3}
    assert set(frame["loss"]) == {"ce"}
    np.testing.assert_array_equal(frame.loc[frame["run"] == "gd-s1", "loss_train"], 1 / np.arange(1, 6))
    assert list(frame.index) == list(range(13))
    assert Runs([]).frame().empty


def test_selection(folder):
    runs = Runs.open(folder)
    assert ids(runs.select(optimizer="gd", seed=1)) == ["gd-s1"]
    assert ids(runs.select(lr=0.1 + 1e-17)) == ["gd-s0", "gd-s1", "empty"]
    assert ids(runs.select(seed=[1, 2], optimizer={"gd", "sam"})) == ["gd-s1"]
    assert ids(runs.select(**{"optimizer.rho": 0.05})) == ["sam-s0"]
    assert ids(runs.select(**{"loss.name": "ce"}, status="finished")) == ["gd-s0", "gd-s1", "sam-s0"]
    assert ids(runs.select(optimizer="muon")) == []
    with pytest.raises(SettingError, match=r"optimiser: no run has this setting; accepted: optimizer, lr, .*rho"):
        runs.select(optimiser="gd")


def test_a_table_with_a_row_per_run(folder):
    table = Runs.open(folder).table().set_index("run")
    assert table["step"].to_dict() == {"gd-s0": 3, "gd-s1": 4, "empty": -1, "sam-s0": 3}
    assert table["steps"].eq(100).all()
    assert table["status"].to_dict() == {
        "gd-s0": "finished",
        "gd-s1": "finished",
        "empty": "killed",
        "sam-s0": "finished",
    }
    assert table.loc["sam-s0", "optimizer.rho"] == 0.05
    with Writer.open(folder / "y" / "empty"):
        assert "running" in set(Runs.open(folder).table()["status"])
    assert Runs([]).table().empty


def test_unreadable_runs_are_named_and_left_out(folder):
    (folder / "x" / "gd-s0" / "run.json").write_text("{")
    segment = folder / "y" / "sam-s0" / "scalars" / "00000000-00000003.npz"
    segment.write_bytes(segment.read_bytes()[:-50])
    runs = Runs.open(folder)
    assert ids(runs) == ["gd-s1", "empty", "sam-s0"]
    assert len(runs.problems) == 1
    assert "gd-s0/run.json: damaged" in runs.problems[0]
    assert "00000003.npz: damaged" in runs["sam-s0"]._repr_html_()
    with pytest.warns(UserWarning, match=r"left out: .*sam-s0/scalars/00000000-00000003.npz: damaged"):
        frame = runs.frame()
    assert set(frame["run"]) == {"gd-s1"}
    assert "sam-s0" in runs.problems[1]


def test_notebook_views_escape_what_they_show(tmp_path):
    evil = "<script>alert(1)</script>"
    with Writer.create(tmp_path / "a", header("a<b>", optimizer={"name": evil, "lr": 0.1})) as writer:
        append(writer, range(2))
    (tmp_path / "b<i>").mkdir()
    (tmp_path / "b<i>" / "run.json").write_text("{")
    runs = Runs.open(tmp_path)
    for view in (runs._repr_html_(), runs[0]._repr_html_()):
        assert "<script" not in view
        assert "<b>a<b>" not in view
        assert "&lt;script&gt;" in view
    assert "b&lt;i&gt;" in runs._repr_html_()
    assert "examples_train" in runs[0]._repr_html_()
