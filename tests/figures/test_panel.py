"""What the panel of the report embeds equals the record."""

import json
import re

import numpy as np
import pytest

import figures
from figures.panel import BINS, STEPS, panel, panel_data
from tests.figures.study import SAMPLES, write_run


@pytest.fixture(scope="module")
def run(runs):
    return runs["gd-lr0.5-s0"]


def test_the_bins_add_up_to_the_ece_of_the_record(run):
    for split, diagrams in panel_data(run)["diagrams"].items():
        assert len(diagrams["steps"]) == STEPS
        ece = run.metric("ece", split=split, bins=BINS)
        for step, bins in zip(diagrams["steps"], diagrams["bins"], strict=True):
            assert sum(count for _, _, count in bins) == SAMPLES
            total = sum(abs(c - a) * n for c, a, n in bins) / SAMPLES
            assert total == pytest.approx(ece.loc[step], abs=1e-3)


def test_the_histogram_counts_every_margin(run):
    diagrams = panel_data(run)["diagrams"]["test"]
    low, high = diagrams["edges"]
    margin = run.column("examples_test", "margin")
    for step, counts in zip(diagrams["steps"], diagrams["margins"], strict=True):
        assert sum(counts) == SAMPLES
        below = np.mean(margin[step] < (low + high) / 2)
        assert sum(counts[: len(counts) // 2]) / SAMPLES == pytest.approx(below, abs=1 / SAMPLES)


def test_curves_are_those_of_the_record(run):
    steps, values = panel_data(run)["curves"]["lambda_max"]
    np.testing.assert_allclose(values, run.metric("lambda_max").loc[steps], rtol=6e-3)


def test_one_run_of_each_step_size_is_embedded(runs):
    text = re.search(r'id="panel-data">(.*?)</script>', panel(list(runs)), re.DOTALL).group(1)
    optimizers = json.loads(text)["optimizers"]
    assert {name: list(rates) for name, rates in optimizers.items()} == {
        "GD": ["0.1", "0.5"],
        "AdamW": ["0.001", "0.002"],
        "BulkSGD": ["0.1"],
    }
    assert optimizers["GD"]["0.5"]["run"] == "gd-lr0.5-s0"


def test_a_record_cannot_close_the_element_of_the_data(tmp_path):
    from analysis.record import Runs

    write_run(tmp_path, "</script><b>", 0.1, 0)
    text = panel(list(Runs.open(tmp_path)))
    assert text.count("</script>") == 2
    page = figures.report(Runs.open(tmp_path), tmp_path / "page").read_text()
    assert "<b>-lr" not in page
