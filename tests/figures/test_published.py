"""The paper's tables beside ours, and paper.toml."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import figures
from analysis.plugins import SettingError
from analysis.record import Runs
from figures.kinds import KINDS
from figures.kinds.table import shown
from figures.paper import items
from figures.published import TABLES, compare, published
from tests.figures.study import SEEDS, STEPS, write_run

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
    table = KINDS.build({"name": "table", "reference": "table2"}, "figure").draw(list(runs))["table2"]
    assert any("last step" in note for note in table.notes)
    assert any("85.2" in note and "85.8" in note for note in table.notes)


def test_values_are_those_at_the_least_validation_loss(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path, "sgd", 0.1, seed, best=17)
    runs = Runs.open(tmp_path)
    row = (
        compare("tableA2", runs).set_index(["optimizer", "method", "quantity"]).loc[("sgd", "ce", "test_accuracy_pct")]
    )
    assert row["ours"] == pytest.approx(100 * np.mean([run.metric("accuracy", split="test").loc[17] for run in runs]))


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
