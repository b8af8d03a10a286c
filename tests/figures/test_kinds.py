"""The artists of each kind of figure hold the numbers of the records."""

import math

import numpy as np
import pytest

from analysis import calibration
from analysis.coupling import couple
from analysis.exponents import exponents
from analysis.methods import method
from analysis.plugins import SettingError
from analysis.record import Runs
from figures.kinds import KINDS
from figures.kinds.coupling import null_of_rho
from figures.kinds.margins import LEVELS, Margins
from tests.figures.study import RATES, SEEDS, STEPS, logits, sharpness, write_run

pytestmark = pytest.mark.usefixtures("drawing_style")

CALMO = {"name": "calmo", "lambda_r": 0.5, "lambda_s": 0.01}


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """SGD with three losses, and BulkSGD with two numbers of directions."""
    folder = tmp_path_factory.mktemp("losses")
    for seed in SEEDS:
        for loss in ({"name": "ce"}, CALMO, {"name": "calmo", "lambda_r": 0.0, "lambda_s": 0.01}):
            write_run(folder / str(loss.get("lambda_r")), "sgd", 0.1, seed, loss=loss)
        for k in (1, 3):
            write_run(folder, "bulk_sgd", 0.1, seed, own={"k": k})
    return Runs.open(folder)


def draw(kind, runs, **settings):
    return KINDS.build({"name": kind, **settings}, "figure").draw(list(runs))


def panel_of(drawing, title):
    return next(axes for axes in drawing.figure.axes if axes.get_title() == title)


def curves(axes):
    return [np.column_stack([line.get_xdata(), line.get_ydata()]) for line in axes.lines if len(line.get_xdata()) > 2]


def mean_over(runs, metric, split="train"):
    return np.mean([run.metric(metric, split=split).to_numpy() for run in runs], axis=0)


@pytest.mark.parametrize("kind", [name for name in KINDS.names() if name != "dynamics"])
def test_titles_say_data_and_scale_and_descriptions_say_more(kind, runs, losses):
    for drawing in draw(kind, losses if kind in ("bulk", "losses") else runs).values():
        assert "40 training samples, MLP 8 tanh" in " ".join(drawing.figure.get_suptitle().split())
        assert "40 training samples" in drawing.title
        assert drawing.description.startswith(drawing.title)
        assert len(drawing.description) > len(drawing.title) + 20
        assert drawing.runs


@pytest.mark.parametrize("kind", ["margins", "phase", "coupling", "reliability", "exponents"])
def test_no_title_is_wider_than_its_figure_nor_any_legend_over_the_data(kind, runs):
    for drawing in draw(kind, runs).values():
        figure = drawing.figure
        figure.draw_without_rendering()
        page = figure.bbox
        for text in (figure._suptitle, *(axes.title for axes in figure.axes)):
            box = text.get_window_extent()
            assert page.x0 <= box.x0
            assert box.x1 <= page.x1
            assert box.y1 <= page.y1
        for axes in figure.axes:
            if axes.get_legend():
                assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent().padded(-1))


def test_phase_draws_the_path_of_the_mean_with_both_ends(runs):
    axes = panel_of(draw("phase", runs, split="test")["test"], "GD")
    members = runs.select(optimizer="gd", lr=0.5)
    steps = np.arange(0, STEPS, 2)
    x = mean_over(members, "ece", "test")[steps]
    y = np.mean([[sharpness(0.5, seed, step) for step in steps] for seed in SEEDS], axis=0)
    assert any(np.allclose(path, np.column_stack([x, y])) for path in curves(axes))
    ends = [(line.get_marker(), *line.get_xydata()[0]) for line in axes.lines if len(line.get_xdata()) == 1]
    assert any(marker == "o" and np.allclose(point, [x[0], y[0]]) for marker, *point in ends)
    assert any(marker == "s" and np.allclose(point, [x[-1], y[-1]]) for marker, *point in ends)


def test_coupling_shows_own_and_other_seed_and_the_observed_value(runs):
    drawing = draw("coupling", runs)["train"]
    result = couple(runs.select(optimizer="gd"))
    scatter = drawing.figure.axes[0]
    dots = next(line for line in scatter.lines if line.get_label() == "GD")
    np.testing.assert_allclose(dots.get_ydata(), result.descriptive["r_log"])
    np.testing.assert_allclose(dots.get_xdata(), result.descriptive["r_log_other"])
    null = panel_of(drawing, f"GD: p = {result.pvalue:.2g}")
    assert null.lines[0].get_xdata()[0] == pytest.approx(result.estimate)
    assert sum(bar.get_height() for bar in null.patches) == 2000


def test_the_null_holds_the_observed_pairing_as_often_as_chance_says(runs):
    members = list(runs.select(optimizer="gd"))
    draws = null_of_rho(members, "ece", "lambda_max", "train", 4000)
    observed = couple(members).estimate
    # Two strata of three runs: 36 pairings, of which one is the observed one.
    assert len(np.unique(draws.round(12))) <= 36
    share = np.mean(np.isclose(draws, observed))
    assert 1 / 36 - 0.012 < share < 4 / 36


def test_margins_are_quantiles_of_all_seeds_together(runs):
    members = list(runs.select(optimizer="gd", lr=0.1))
    steps, levels = Margins(points=10).quantiles(members, "train")
    assert steps[0] == 0
    assert steps[-1] == STEPS - 1
    assert len(steps) == 10
    together = []
    for seed in SEEDS:
        z, y = logits(0.1, seed, "train")
        other = np.where(np.eye(z.shape[-1], dtype=bool)[y], -np.inf, z[steps])
        together.append(z[steps][:, np.arange(len(y)), y] - other.max(-1))
    np.testing.assert_allclose(levels, np.quantile(np.hstack(together), LEVELS, axis=1), rtol=1e-5, atol=1e-6)
    axes = draw("margins", runs, points=10)["gd"].figure.axes[0]
    assert any(np.allclose(path[:, 1], levels[3]) for path in curves(axes))


def test_reliability_draws_the_nonempty_bins_at_start_peak_and_end(runs):
    drawing = draw("reliability", runs.select(optimizer="bulk_sgd"), bins=5)["bulksgd"]
    members = runs.select(optimizer="bulk_sgd")
    peak = int(np.argmax(mean_over(members, "ece")))
    for column, step in enumerate((0, peak, STEPS - 1)):
        scores = []
        for seed in SEEDS:
            z, y = logits(0.1, seed, "test")
            p = np.exp(z[step]) / np.exp(z[step]).sum(-1, keepdims=True)
            scores += [(c, hit) for c, hit in zip(p.max(-1), p.argmax(-1) == y, strict=True)]
        expected = []
        for b in range(5):
            inside = [(c, hit) for c, hit in scores if b / 5 < c <= (b + 1) / 5]
            if inside:
                expected.append(np.mean(inside, axis=0))
        (line,) = [one for one in drawing.figure.axes[3 + column].lines if one.get_label().startswith("$")]
        np.testing.assert_allclose(line.get_xydata(), expected, rtol=1e-5)


def test_exponents_draw_ece_and_sharpness_against_q_with_the_fitted_slopes(runs):
    drawing = draw("exponents", runs)["train"]
    upper = panel_of(drawing, "GD")
    members = runs.select(optimizer="gd", lr=0.1)
    q, error = mean_over(members, "exp_moment"), mean_over(members, "ece")
    assert any(np.allclose(path, np.column_stack([q, error])) for path in curves(upper))
    slope = exponents(runs.select(optimizer="gd")).slopes[0]
    assert f"{slope.mean:.2f}" in upper.texts[0].get_text()


def test_bulk_sets_each_number_of_directions_beside_sgd(losses):
    drawing = draw("bulk", [run for run in losses if method(run) == "CE"])["train"]
    titles = [axes.get_title() for axes in drawing.figure.axes[:3]]
    assert titles == ["SGD", "BulkSGD, k = 1", "BulkSGD, k = 3"]
    expected = mean_over(losses.select(**{"optimizer.k": 3}), "ece")
    assert any(np.allclose(path[:, 1], expected) for path in curves(drawing.figure.axes[3 + 2]))
    with pytest.raises(SettingError, match="no run with the optimizer bulk_sgd"):
        draw("bulk", losses.select(optimizer="sgd"))


def test_losses_beyond_the_papers_are_told_apart(tmp_path):
    for name in ("ce", "mixup", "mmce", "soft_ece"):
        write_run(tmp_path, "sgd", 0.1, 0, loss={"name": name})
    (drawing,) = draw("losses", Runs.open(tmp_path), quantities=["ece/test"]).values()
    lines = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in drawing.figure.axes[0].lines}
    assert set(lines) == {"CE", "mixup", "mmce", "soft_ece"}
    assert len(set(lines.values())) == 4
    assert lines["CE"] == ("#000000", "-")


def test_losses_have_a_line_each_and_a_band_over_seeds(losses):
    (drawing,) = draw("losses", losses.select(optimizer="sgd"), quantities=["ece/test", "lambda_max/train"]).values()
    axes = drawing.figure.axes[0]
    assert [line.get_label() for line in axes.lines] == ["CE", "CalMO", "Flat"]
    calmo = [run for run in losses if method(run) == "CalMO"]
    values = np.array([run.metric("ece", split="test") for run in calmo])
    np.testing.assert_allclose(axes.lines[1].get_ydata(), values.mean(0))
    band = axes.collections[1].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx((values.mean(0) + values.std(0, ddof=1)).max())
    assert band.min() >= values.min() - 1e-12


def test_slack_draws_the_chains_from_the_record_up_to_the_papers_bounds(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path, "gd", 0.1, seed, jacobian=True)
    members = Runs.open(tmp_path)
    drawing = draw("slack", members)["train"]
    upper, lower = drawing.figure.axes
    lines = {line.get_label(): line.get_ydata() for axes in (upper, lower) for line in axes.lines}

    def median(values):
        return np.median(values, axis=0)

    moments = []
    for run in members:
        rows = run.column("examples_train", "margin").tolist()
        moments.append([math.fsum(math.exp(-m) for m in row) / len(row) for row in rows])
    np.testing.assert_allclose(lines["(K−1) Q"], median(moments) * 3, rtol=1e-6)
    np.testing.assert_allclose(lines["ECE"], median([run.metric("ece") for run in members]), rtol=1e-6)
    np.testing.assert_allclose(lines["2 C_J² (K−1) Q"], 2 * 40**2 * 3 * median(moments), rtol=1e-6)
    np.testing.assert_allclose(lines["GN sharpness"], median([run.metric("lambda_max") for run in members]))
    vacuous = np.mean(3 * np.array(moments) >= 1)
    assert f"{vacuous:.0%} of steps" in drawing.description


def test_slack_has_one_chain_without_jacobian_norms(runs):
    assert len(draw("slack", runs.select(optimizer="gd"), split="test")["test"].figure.axes) == 1


@pytest.mark.parametrize("kind", ["phase", "coupling", "exponents"])
def test_runs_without_sharpness_are_a_clear_error(kind, tmp_path):
    from analysis.record import Writer
    from tests.analysis.record_samples import header

    with Writer.create(tmp_path / "a", header()) as writer:
        writer.append("scalars", 0, loss_train=1.0)
    with pytest.raises(SettingError):
        draw(kind, Runs.open(tmp_path))


def test_the_mean_calibration_error_of_the_study_is_not_trivial(runs):
    """Guards the tests above: curves that were constant would agree with anything."""
    errors = mean_over(runs.select(optimizer="gd", lr=0.5), "ece")
    assert np.ptp(errors) > 0.05
    assert len(RATES["gd"]) > 1
    z, y = logits(0.5, 0, "train")
    assert 0 < float(calibration.ece(*calibration.top_label(z[0], y, from_logits=True))) < 1
