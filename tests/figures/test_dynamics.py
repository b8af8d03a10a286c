"""The artists of the dynamics figure hold the numbers of the record."""

import numpy as np
import pytest

from analysis.plugins import SettingError
from analysis.record import Runs
from figures.kinds import KINDS
from figures.records import groups, mean, series, thin
from tests.figures.study import RATES, SEEDS, STEPS, write_run

pytestmark = pytest.mark.usefixtures("drawing_style")


def draw(runs, **settings):
    return KINDS.build({"name": "dynamics", **settings}, "figure").draw(list(runs))


def cell(drawing, label, split):
    """The axes of a row (by the label at its left) and a column."""
    axes = drawing.figure.axes
    row = next(i for i in range(0, len(axes), 2) if axes[i].get_ylabel().startswith(label))
    return axes[row + (split == "test")]


def drawn(axes):
    return [line for line in axes.lines if line.get_label() != "_edge" and len(line.get_xdata()) > 2]


def has_line(axes, values):
    """Some line shows exactly this series."""
    return any(
        np.array_equal(line.get_xdata(), values.index) and np.allclose(line.get_ydata(), values, rtol=1e-12)
        for line in axes.lines
        if len(line.get_xdata()) == len(values)
    )


def test_there_is_one_figure_for_each_optimizer(runs):
    assert set(draw(runs)) == {"gd", "adamw", "bulksgd"}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("label", "metric"), [("loss", "loss"), ("accuracy", "accuracy"), ("ECE", "ece"), ("KCE", "kce")]
)
def test_every_seed_and_the_mean_are_drawn_as_recorded(runs, label, metric, split):
    axes = cell(draw(runs)["gd"], label, split)
    members = runs.select(optimizer="gd")
    for run in members:
        assert has_line(axes, run.metric(metric, split=split))
    for rate in RATES["gd"]:
        stack = [run.metric(metric, split=split).to_numpy() for run in members.select(lr=rate)]
        average = members[0].metric(metric, split=split) * 0 + np.mean(stack, axis=0)
        assert has_line(axes, average)
    assert len(drawn(axes)) == len(RATES["gd"]) * (len(SEEDS) + 1)


@pytest.mark.parametrize("q", [0.5, 0.1, 0.01])
def test_margins_are_means_of_quantiles(runs, q):
    axes = cell(draw(runs)["gd"], "margin", "test")
    members = runs.select(optimizer="gd", lr=0.1)
    rows = [np.quantile(run.column("examples_test", "margin").astype(float), q, axis=1) for run in members]
    assert any(np.allclose(line.get_ydata(), np.mean(rows, axis=0), rtol=1e-9) for line in drawn(axes))


def test_sharpness_is_drawn_at_the_steps_where_it_was_measured(runs):
    line = drawn(cell(draw(runs)["gd"], "GN sharpness", "train"))[0]
    np.testing.assert_array_equal(line.get_xdata(), np.arange(0, STEPS, 2))


def test_the_edge_is_drawn_for_gradient_steps_only(runs):
    drawings = draw(runs)
    edges = {
        name: [line.get_ydata()[0] for axes in one.figure.axes for line in axes.lines if line.get_label() == "_edge"]
        for name, one in drawings.items()
    }
    assert sorted(edges["gd"]) == pytest.approx([2 / 0.5, 2 / 0.1])
    assert edges["bulksgd"] == pytest.approx([2 / 0.1])
    assert edges["adamw"] == []


def test_step_sizes_have_colours_of_their_own_and_seeds_share_one(runs):
    lines = drawn(cell(draw(runs)["gd"], "ECE", "train"))
    assert len({line.get_color() for line in lines}) == len(RATES["gd"])


def test_the_title_says_data_scale_and_model(runs):
    title = draw(runs)["gd"].figure._suptitle.get_text()
    assert title == "GD: digits <small> & noisy, 40 training samples, MLP 8 tanh"


def test_batch_sharpness_takes_the_empty_cell_where_it_was_recorded(runs, tmp_path):
    write_run(tmp_path, "sgd", 0.1, 0, batch_sharpness=True)
    (one,) = Runs.open(tmp_path)
    last = draw([one])["sgd"].figure.axes[-1]
    assert last.get_ylabel() == "batch sharpness"
    assert has_line(last, one.metric("batch_sharpness"))
    assert not draw(runs)["gd"].figure.axes[-1].axison


def test_runs_that_differ_in_more_than_rate_and_seed_are_not_mixed(tmp_path):
    for k in (1, 3):
        write_run(tmp_path, "bulk_sgd", 0.1, 0, own={"k": k})
    assert list(groups(Runs.open(tmp_path))) == ["BulkSGD, k = 1", "BulkSGD, k = 3"]
    assert list(draw(Runs.open(tmp_path))) == ["bulksgd-k-1", "bulksgd-k-3"]


def test_only_long_trajectories_are_thinned_and_it_is_said(runs):
    assert draw(runs)["gd"].notes == ()
    (note,) = draw(runs, points=10)["gd"].notes
    assert "64 steps" in note
    assert "10" in note


def test_thinning_keeps_the_envelope_of_an_oscillation(runs):
    values = series(runs[0], "ece").iloc[:0]
    values = values.reindex(range(1000)).astype(float)
    values.iloc[:] = np.where(np.arange(1000) % 2, 5.0, 1.0)
    values.iloc[501] = 9.0
    thinned = thin(values, 100)
    assert len(thinned) <= 100
    assert thinned.max() == 9
    assert thinned.min() == 1
    assert (thinned == 5).sum() > 40


def test_a_mean_is_over_the_steps_that_all_have(runs):
    first, second = series(runs[0], "ece"), series(runs[1], "ece").iloc[::3]
    average = mean([first, second])
    assert list(average.index) == list(second.index)
    np.testing.assert_allclose(average, (first.loc[second.index] + second) / 2)


def test_the_words_for_those_who_cannot_see_it_carry_the_peaks(runs):
    words = draw(runs)["gd"].description
    peak = mean([run.metric("ece") for run in runs.select(optimizer="gd", lr=0.5)])
    assert f"{peak.max():.3g} at step {peak.idxmax()}" in words


def test_runs_without_a_step_are_a_clear_error(tmp_path):
    from analysis.record import Run, Writer
    from tests.analysis.record_samples import header

    Writer.create(tmp_path / "a", header()).close()
    with pytest.raises(SettingError, match="none has recorded a step"):
        draw([Run.open(tmp_path / "a")])
