"""Proper scores, their decompositions, selective risk and soft bins against sums and other libraries."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss, log_loss

from analysis import calibration as cal
from analysis.soft_binning import soft_ece_slope
from tests.analysis import calibration_cases as twin
from tests.analysis.calibration_cases import classified, random_logits, random_samples, samples


@given(classified())
def test_nll_is_cross_entropy_in_float64(data):
    logits, labels = data
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(labels)).item()
    assert cal.nll(logits, labels) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_nll_keeps_what_a_softmax_loses():
    assert cal.nll([[0.0, 800.0]], [0]) == 800.0
    assert cal.nll([[0.0, 800.0]], [1]) == 0.0
    assert cal.nll([[40.0, 0.0]], [0]) == pytest.approx(np.exp(-40.0), rel=1e-12)


def test_nll_of_probabilities():
    p = np.array([[0.25, 0.75], [0.5, 0.5]])
    assert cal.nll(p, [0, 1], from_logits=False) == pytest.approx(np.log(8) / 2, abs=1e-15)
    assert cal.nll([[1.0, 0.0]], [1], from_logits=False) == np.inf


def test_scores_agree_with_scikit_learn():
    logits, labels = random_logits(200, classes=2)
    p = twin.softmax(logits)
    assert cal.brier(p, labels, from_logits=False, scale="half") == pytest.approx(brier_score_loss(labels, p[:, 1]))
    assert cal.nll(logits, labels) == pytest.approx(log_loss(labels, p))


@given(classified(), st.integers(1, 12), st.sampled_from(["sum", "half"]), st.sampled_from(["width", "mass"]))
def test_the_brier_decomposition_closes(data, bins, scale, binning):
    terms = cal.brier_decomposition(*data, from_logits=True, scale=scale, bins=bins, binning=binning)
    expected = cal.brier(*data, from_logits=True, scale=scale)
    assert terms.brier == pytest.approx(expected, abs=1e-12)
    assert min(terms.reliability, terms.resolution, terms.uncertainty, terms.within_variance) >= -1e-15


@given(samples(), st.integers(1, 12), st.sampled_from(["right", "left"]))
def test_the_brier_decomposition_of_the_confidence_closes(data, bins, closed):
    confidence, correct = data
    terms = cal.confidence_brier_decomposition(confidence, correct, bins, closed=closed)
    assert terms.brier == pytest.approx(np.mean((confidence - correct) ** 2), abs=1e-12)


def test_one_score_per_bin_leaves_murphys_three_terms():
    confidence = np.repeat([0.15, 0.55, 0.85], 4)
    correct = np.array([0, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1])
    terms = cal.confidence_brier_decomposition(confidence, correct, 10)
    assert terms.within_variance == pytest.approx(0, abs=1e-30)
    assert terms.within_covariance == pytest.approx(0, abs=1e-30)
    assert terms.reliability == pytest.approx((0.1**2 + 0.05**2 + 0.15**2) / 3, abs=1e-15)
    base = 7 / 12
    assert terms.uncertainty == pytest.approx(base * (1 - base), abs=1e-15)
    expected = np.mean([(rate - base) ** 2 for rate in (0.25, 0.5, 1.0)])
    assert terms.resolution == pytest.approx(expected, abs=1e-15)


@settings(max_examples=40)
@given(classified(least=2))
def test_calibration_and_refinement_are_parts_of_the_nll(data):
    parts = cal.calibration_refinement(*data)
    assert parts.loss == pytest.approx(cal.nll(*data), rel=1e-12, abs=1e-15)
    assert parts.calibration >= -1e-12


def test_refinement_is_blind_to_a_temperature_and_calibration_is_not():
    logits, labels = random_logits(2000, scale=1.0)
    fair, sharp = cal.calibration_refinement(logits, labels), cal.calibration_refinement(4 * logits, labels)
    assert sharp.refinement == pytest.approx(fair.refinement, abs=1e-9)
    assert fair.calibration < 2e-3 < 0.2 < sharp.calibration


@given(samples(), st.sampled_from(["brier", "nll"]))
def test_isotonic_refinement_is_the_loss_after_scikit_learns_fit(data, loss):
    # scikit-learn divides by the distance of scores, and gives NaN where that underflows.
    confidence, correct = np.round(data[0], 3), data[1].astype(float)
    best = IsotonicRegression().fit_transform(confidence, correct)
    parts = cal.confidence_refinement(confidence, correct, loss)
    inside = np.where(correct == 1, best, 1 - best)
    expected = np.mean((best - correct) ** 2) if loss == "brier" else -np.mean(np.log(inside))
    assert parts.refinement == pytest.approx(expected, abs=1e-9)
    assert parts.calibration >= -1e-9


def test_the_temperature_is_where_a_line_search_finds_it():
    for seed, scale in [(0, 0.3), (1, 1.0), (2, 30.0)]:
        logits, labels = random_logits(300, seed=seed, scale=scale)

        def loss(log_t, logits=logits, labels=labels):
            return cal.nll(logits / np.exp(log_t), labels)

        expected = np.exp(minimize_scalar(loss, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10}).x)
        assert cal.fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=150)
@given(classified())
def test_a_fitted_temperature_is_positive_and_never_raises_its_own_nll(data):
    logits, labels = data
    temperature = cal.fit_temperature(logits, labels)
    assert 0 < temperature < np.inf
    assert cal.nll(logits / temperature, labels) <= cal.nll(logits, labels) * (1 + 1e-14)


@pytest.mark.parametrize("scale", [5e-324, 1e-213, 1e-100, 1.0, 1e100, 1e300])
def test_a_temperature_is_found_at_any_scale(scale):
    for labels in ([0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]):
        logits = np.array([[scale, 0.0]] * 4)
        temperature = cal.fit_temperature(logits, labels)
        assert 0 < temperature < np.inf
        assert cal.nll(logits / temperature, labels) <= cal.nll(logits, labels)


def test_a_set_that_is_all_correct_ends_where_its_slope_does():
    logits = np.array([[3.0, 0.0, -1.0], [0.0, 2.0, 1.0]])
    assert cal.nll(logits / cal.fit_temperature(logits, [0, 1]), [0, 1]) < 1e-300
    # Flatter is always better here, and the NLL of no opinion is as far as it goes.
    assert cal.nll(logits / cal.fit_temperature(logits, [2, 0]), [2, 0]) == pytest.approx(np.log(3), abs=1e-5)


def test_temperature_scales_with_the_logits():
    logits, labels = random_logits(200)
    base = cal.fit_temperature(logits, labels)
    for factor in (1e-6, 1e-3, 1e3, 1e6):
        assert cal.fit_temperature(factor * logits, labels) == pytest.approx(factor * base, rel=1e-9)


@settings(max_examples=80)
@given(samples(most=6))
def test_aurc_averages_over_every_order_of_a_tie(data):
    assert cal.aurc(*data) == pytest.approx(twin.aurc(*data), abs=1e-12)


def test_aurc_by_trapezoids():
    confidence, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 0])
    risks = np.array([0, 1 / 2, 1 / 3, 1 / 2])
    assert cal.aurc(confidence, correct, rule="trapezoid") == pytest.approx(np.trapezoid(risks) / 3)
    assert cal.aurc([0.4], [0], rule="trapezoid") == 1.0


def test_selective_risk_answers_the_most_confident():
    confidence, correct = random_samples(100)
    order = np.argsort(-confidence)
    for coverage, answered in [(0.07, 7), (0.071, 8), (0.29, 29), (1e-9, 1), (1.0, 100)]:
        expected = 1 - correct[order[:answered]].mean()
        assert cal.selective_risk(confidence, correct, coverage) == pytest.approx(expected, abs=1e-12)
    assert cal.selective_risk([0.5, 0.5, 0.9], [1, 0, 1], 0.6) == pytest.approx(0.25)


@given(samples(), st.integers(1, 20), st.floats(0.02, 0.5), st.sampled_from([0.0, 1e-3, 0.1]))
def test_soft_ece_is_its_sum(data, bins, sigma, delta):
    confidence, correct = data
    # Where a soft bin's weight underflows the quotient of the definition is 0/0.
    expected = twin.soft_ece(np.clip(confidence, 0.02, 0.98), correct, bins, max(sigma, 0.05), delta)
    found = cal.soft_ece(np.clip(confidence, 0.02, 0.98), correct, bins, max(sigma, 0.05), delta)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_soft_ece_has_the_gradient_that_torch_finds(delta):
    confidence, correct = random_samples(60)
    c = torch.tensor(confidence, requires_grad=True)
    centres = (torch.arange(15, dtype=torch.float64) + 0.5) / 15
    w = torch.softmax(-((c[:, None] - centres) ** 2) / (2 * 0.05**2), dim=1)
    gap = (w * (c - torch.tensor(correct * 1.0))[:, None]).sum(0) / w.sum(0)
    size = gap.abs() if delta == 0 else torch.sqrt(gap**2 + delta**2)
    loss = (w.sum(0) / 60 * size).sum()
    (expected,) = torch.autograd.grad(loss, c)
    value, slope = soft_ece_slope(confidence, correct.astype(float), 15, 0.05, delta)
    assert value == pytest.approx(loss.item(), abs=1e-14)
    np.testing.assert_allclose(slope, expected.numpy(), rtol=0, atol=1e-14)


def test_a_bootstrap_interval_of_a_mean_is_the_textbook_one():
    confidence, correct = random_samples(400)
    found = cal.bootstrap(cal.confidence_gap, confidence, correct, resamples=4000)
    half = 1.96 * (confidence - correct).std() / 20
    assert found.estimate == cal.confidence_gap(confidence, correct)
    assert found.low == pytest.approx(found.estimate - half, abs=0.06 * half)
    assert found.high == pytest.approx(found.estimate + half, abs=0.06 * half)


def test_bootstrap_takes_batches_logits_and_any_metric():
    logits, labels = random_logits(80)
    stacked = np.stack([logits, logits, 2 * logits])
    found = cal.bootstrap(cal.nll, stacked, labels, axes=(-2, -1), resamples=50)
    assert found.estimate.shape == found.low.shape == (3,)
    assert (found.low <= found.high).all()
    # One set of resamples for all rows: equal rows, equal intervals.
    assert found.low[0] == found.low[1] != found.low[2]
    assert cal.bootstrap(cal.nll, logits, labels, axes=(-2, -1), resamples=50).low == found.low[0]


def test_the_basic_interval_reflects_the_percentile_one_and_is_cut_to_the_range():
    confidence, correct = random_samples(60)
    basic = cal.bootstrap(cal.ece, confidence, correct, resamples=200)
    ends = cal.bootstrap(cal.ece, confidence, correct, resamples=200, method="percentile")
    assert basic.low == pytest.approx(2 * basic.estimate - ends.high)
    assert basic.high == pytest.approx(2 * basic.estimate - ends.low)
    calibrated = cal.bootstrap(cal.ece, [0.5, 0.5, 0.5, 0.5], [1, 0, 1, 0], resamples=200, within=(0, 1))
    assert calibrated.low == calibrated.high == calibrated.estimate == 0


def test_an_infinite_estimate_has_an_infinite_interval():
    p, labels = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 0])
    found = cal.bootstrap(
        lambda values, y: cal.nll(values, y, from_logits=False), p, labels, axes=(-2, -1), resamples=20
    )
    assert found.low == found.high == np.inf


def test_bootstrap_refuses_arrays_of_different_samples():
    with pytest.raises(cal.InputError, match=r"arrays of \[4, 5\] samples"):
        cal.bootstrap(cal.ece, np.full(4, 0.5), np.ones(5))
