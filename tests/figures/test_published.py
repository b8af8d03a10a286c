"""The paper's tables beside ours, and paper.toml."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import figures
from analysis import calibration
from analysis.after import After
from analysis.methods import method
from analysis.plugins import SettingError
from analysis.record import Runs, Writer
from figures.kinds import KINDS
from figures.kinds.table import shown
from figures.paper import items
from figures.published import TABLES, compare, notes, published
from tests.figures.study import CLASSES, SEEDS, STEPS, examples, logits, write_run

CALMO = {"name": "calmo", "lambda_r": 0.5, "lambda_s": 0.01}


@pytest.mark.parametrize(("name", "rows"), [("table1", 20), ("table2", 32), ("tableA1", 32), ("tableA2", 32)])
def test_every_published_number_is_there(name, rows):
    table = published(name)
    assert len(table) == rows
    raw = pd.read_csv(TABLES / f"{name}.csv").select_dtypes("number")
    kept = raw.drop(columns=[c for c in raw if c.startswith("lambda_") or c.endswith("std")])
    assert sorted(table["paper"]) == sorted(kept.to_numpy().ravel())


def test_table_1_averages_r_over_seeds_then_over_step_sizes(runs):
    table = compare("table1", runs).set_index(["optimizer", "quantity"])
    means = []
    for rate in (0.1, 0.5):
        values = []
        for run in runs.select(optimizer="gd", lr=rate):
            sharp = run.metric("lambda_max")
            values.append(np.corrcoef(run.metric("kce", split="test").loc[sharp.index], sharp)[0, 1])
        means.append(np.mean(values))
    row = table.loc[("gd", "r of kce, test")]
    assert row["ours"] == pytest.approx(np.mean(means))
    assert row["ours_std"] == pytest.approx(np.std(means, ddof=1))
    assert row["values"] == 2
    assert row["paper"] == 0.97
    assert row["difference"] == pytest.approx(np.mean(means) - 0.97)
    welch = stats.ttest_ind_from_stats(row["ours"], row["ours_std"], 2, 0.97, 0.01, 4, equal_var=False)
    assert row["verdict"] == ("differs" if welch.pvalue <= 0.05 else "compatible")
    assert row["coupling"] in ("SUPPORTED", "REFUTED", "INCONCLUSIVE")
    assert table.loc[("muon", "r of ece, train"), "verdict"] == "not run"


def test_one_step_size_is_too_few_for_a_verdict(runs):
    table = compare("table1", runs.select(optimizer="gd", lr=0.5))
    assert set(table.loc[table["optimizer"] == "gd", "verdict"]) == {"too few"}


def test_tables_of_losses_take_the_last_step_without_a_validation_split(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path, "sgd", 0.1, seed, loss=CALMO)
    runs = Runs.open(tmp_path)
    row = compare("table2", runs).set_index(["optimizer", "method", "quantity"]).loc[("sgd", "calmo", "test_ece")]
    values = [run.metric("ece", split="test").loc[STEPS - 1] for run in runs]
    assert row["ours"] == pytest.approx(np.mean(values))
    assert row["ours_std"] == pytest.approx(np.std(values, ddof=1))
    assert (row["selection"], row["last"], row["last_std"]) == ("last", row["ours"], row["ours_std"])
    table = KINDS.build({"name": "table", "reference": "table2"}, "figure").draw(list(runs))["table2"]
    assert any("last step" in note for note in table.notes)
    assert any("85.2" in note and "85.8" in note for note in table.notes)


def test_values_are_those_at_the_least_validation_loss(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path, "sgd", 0.1, seed, best=17)
    runs = Runs.open(tmp_path)
    table = compare("tableA2", runs).set_index(["optimizer", "method", "quantity"])
    row = table.loc[("sgd", "ce", "test_accuracy_pct")]
    accuracy = np.array([run.metric("accuracy", split="test").loc[[17, STEPS - 1]] for run in runs])
    assert (row["ours"], row["last"]) == pytest.approx(tuple(100 * accuracy.mean(axis=0)))
    assert (row["ours_std"], row["last_std"]) == pytest.approx(tuple(100 * accuracy.std(axis=0, ddof=1)))
    assert row["selection"] == "best"
    assert row["ours"] != row["last"]
    words = (
        shown(table.reset_index()).set_index(["optimizer", "method", "quantity"]).loc["SGD", "CE", "test accuracy pct"]
    )
    assert words["selection"] == "best"
    assert words["at last step"] == f"{row['last']:.1f} ± {row['last_std']:.1f}"
    assert any("least validation loss (cross-entropy), and at its last" in note for note in notes("tableA2", runs))
    missing = table.loc[("muon", "ce", "test_ece")]
    assert (missing["selection"], missing["values"], missing["verdict"]) == ("", 0, "not run")


def test_a_row_of_runs_with_and_without_validation_says_so(tmp_path):
    write_run(tmp_path, "sgd", 0.1, 0, best=17)
    write_run(tmp_path, "sgd", 0.1, 1)
    runs = Runs.open(tmp_path)
    row = compare("table2", runs).set_index(["optimizer", "method", "quantity"]).loc[("sgd", "ce", "test_ece")]
    assert row["selection"] == "best or last"
    first, second = (run.metric("ece", split="test") for run in runs)
    assert row["ours"] == pytest.approx((first.loc[17] + second.iloc[-1]) / 2)
    assert any("Not everywhere" in note for note in notes("table2", runs))


def test_runs_that_ended_badly_are_left_out_and_counted(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path, "sgd", 0.1, seed)
    path = next(tmp_path.glob("*s2"))
    header = json.loads((path / "run.json").read_text())
    header["meta"]["status"] = "diverged"
    (path / "run.json").write_text(json.dumps(header))
    runs = Runs.open(tmp_path)
    row = compare("table2", runs).set_index(["optimizer", "method", "quantity"]).loc[("sgd", "ce", "test_ece")]
    assert row["values"] == 2
    assert "1 failed or diverged runs are left out." in notes("table2", runs)


def with_logits(folder, seed, loss, best=40, validation=True):
    """A run with the logits of test and, if so wished, validation at every eighth step."""
    name = f"{loss['name']}-{len(loss)}-{seed}"
    spec = {"optimizer": {"name": "sgd", "lr": 0.1}, "loss": loss, "seed": seed, "steps": STEPS - 1}
    meta = {"data": {"classes": CLASSES, "n_train": 1, "label": "digits"}}
    with Writer.create(folder / name, {"id": name, "spec": spec, "meta": meta}) as writer:
        z, (validation_z, validation_y) = logits(0.1, seed, "test")[0], logits(0.1, seed + 10, "validation")
        y = LABELS
        writer.static("labels_test", labels=y)
        writer.static("labels_validation", labels=validation_y)
        for step in range(0, STEPS, 8):
            writer.append("scalars", step, loss_validation=1.0 + abs(step - best))
            writer.append("examples_test", step, **examples(z[step], y))
            writer.append("logits_test", step, logits=z[step])
            if validation:
                writer.append("logits_validation", step, logits=validation_z[step])
        writer.update(status="finished")


LABELS = logits(0.1, 0, "test")[1]


def test_calibrators_and_ensembles_that_were_asked_for_end_the_table(tmp_path):
    for seed in SEEDS:
        with_logits(tmp_path, seed, {"name": "ce"})
        with_logits(tmp_path, seed, CALMO)
        with_logits(tmp_path, seed, {"name": "focal"})
    runs = Runs.open(tmp_path)
    plain = compare("table2", runs)
    After(ensemble=True, calibrators=("temperature",)).save(tmp_path)
    table = compare("table2", runs)
    pd.testing.assert_frame_equal(table.iloc[: len(plain)], plain)
    further = table.iloc[len(plain) :].set_index(["method", "quantity"])
    names = [f"{loss}{more}" for loss in ("CE", "CalMO") for more in (" + temperature", " ensemble of 3")]
    assert list(further.index) == [(name, quantity) for name in names for quantity in ("test_accuracy_pct", "test_ece")]
    assert further[["paper", "paper_std", "difference", "last"]].isna().all(axis=None)
    assert set(further["verdict"]) == {"ours only"}
    at_best = [run.rows("logits_test", "logits", [40])[0] for run in runs if method(run) == "CE"]
    p = np.mean([np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in at_best], axis=0)
    row = further.loc[("CE ensemble of 3", "test_ece")]
    assert row["ours"] == pytest.approx(calibration.ece(p.max(-1), p.argmax(-1) == LABELS))
    assert (row["values"], row["selection"]) == (1, "best")
    assert np.isnan(row["ours_std"])
    accuracy = further.loc[("CE + temperature", "test_accuracy_pct")]
    unscaled = table.set_index(["method", "quantity"]).loc[("ce", "test_accuracy_pct")].iloc[0]
    assert accuracy["ours"] == pytest.approx(unscaled["ours"])  # a temperature moves no prediction
    assert any("steps with recorded logits" in note for note in notes("table2", runs))
    assert "focal loss ensemble of 3" in set(compare("tableA2", runs)["method"])
    assert len(compare("tableA1", runs)) == len(published("tableA1"))
    drawing = KINDS.build({"name": "table", "reference": "table2"}, "figure").draw(list(runs))["table2"]
    texts = [text.get_text() for text in drawing.figure.axes[0].texts]
    assert "CE ensemble of 3" in texts
    assert "ours only" in texts


def test_what_the_records_do_not_allow_is_a_note(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path, "sgd", 0.1, seed)
    After(calibrators=("temperature",)).save(tmp_path)
    runs = Runs.open(tmp_path)
    assert len(compare("table2", runs)) == len(published("table2"))
    assert any("no run has logits_test and logits_validation" in note for note in notes("table2", runs))
    assert not any("logits" in note for note in notes("tableA1", runs))
    single = tmp_path / "single"
    with_logits(single, 0, {"name": "ce"}, validation=False)
    After(ensemble=True).save(single)
    assert any("No ensemble of 1 of 1 settings" in note for note in notes("table2", Runs.open(single)))


def test_the_printed_table_holds_means_and_deviations(runs):
    words = shown(compare("table1", runs))
    assert words.loc[0, "paper"] == "0.83 ± 0.08"
    assert words.loc[3, "ours"] == "–"


def test_draw_writes_a_table_as_csv_too(runs, tmp_path):
    path = figures.draw("table1", runs, tmp_path)
    table = pd.read_csv(path.with_suffix(".csv"))
    assert list(table["paper"]) == list(published("table1")["paper"])
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["paper"]["experiment"] == items()["table1"].experiment


def test_paper_toml_has_every_figure_and_table():
    expected = {f"fig{i}" for i in range(1, 4)} | {f"figA{i}" for i in range(1, 21)}
    assert set(items()) == expected | {"table1", "table2", "tableA1", "tableA2"}
    for item in items().values():
        assert item.build().name == item.kind


def test_an_item_draws_the_runs_that_it_names(runs, tmp_path):
    path = figures.draw("figA2", runs, tmp_path)
    assert path.name == "figA2-adamw.pdf"
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["runs"] == [run.id for run in runs.select(optimizer="adamw")]


def test_an_item_without_its_runs_is_a_clear_error(runs, tmp_path):
    with pytest.raises(SettingError, match=r"optimizer = 'muon'.*the experiment"):
        figures.draw("figA3", runs, tmp_path / "none")
    assert not (tmp_path / "none").exists()
