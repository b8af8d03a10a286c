"""Kernel errors against their double sums, the smooth ECE against quadrature and relplot."""

import numpy as np
import pytest
import relplot
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import calibration as cal
from analysis.plugins import SettingError
from runners.losses.mmce import MaximumMeanCalibrationError
from tests.analysis import calibration_cases as twin
from tests.analysis.calibration_cases import classified, random_logits, random_samples, samples


@settings(max_examples=150)
@given(samples(), st.sampled_from([0.002, 0.01, 0.1, 0.4, 3.0, 1e3]))
def test_kce_is_its_double_sum(data, width):
    confidence, correct = data
    n, residual = len(confidence), correct - confidence
    expected = twin.kernel_form(confidence, residual, width) / n**2
    assert cal.kce(*data, width, squared=True) == pytest.approx(expected, abs=1e-12)
    assert cal.kce(*data, width) ** 2 == pytest.approx(max(expected, 0), abs=1e-12)
    if n > 1:
        unbiased = twin.kernel_form(confidence, residual, width, diagonal=False) / (n * (n - 1))
        assert cal.kce(*data, width, estimator="unbiased", squared=True) == pytest.approx(unbiased, abs=1e-12)


def test_kce_stays_exact_for_many_samples():
    confidence, correct = random_samples(3000)
    expected = twin.kernel_form(confidence, correct - confidence, 0.4) / 3000**2
    assert cal.kce(confidence, correct, squared=True) == pytest.approx(expected, abs=1e-14)


def test_kce_is_the_training_loss_mmce():
    logits, labels = random_logits(50)
    loss = MaximumMeanCalibrationError(bandwidth=0.3).of_logits(torch.tensor(logits), torch.tensor(labels))
    assert cal.kce(*cal.top_label(logits, labels, from_logits=True), 0.3) == pytest.approx(loss.item(), abs=1e-12)


def test_the_unbiased_estimator_is_unbiased():
    # Calibrated by construction: its mean is 0, that of the biased one is not.
    confidence, _ = random_samples(50)
    generator = np.random.default_rng(1)
    correct = generator.uniform(size=(4000, 50)) < confidence
    unbiased = cal.kce(np.broadcast_to(confidence, correct.shape), correct, estimator="unbiased", squared=True)
    error = unbiased.std() / len(unbiased) ** 0.5
    assert abs(unbiased.mean()) < 4 * error
    assert (unbiased < 0).any()
    assert cal.kce(confidence, correct, squared=True).mean() > 20 * error


@given(samples(), st.floats(0.01, 2))
def test_weighted_kce_is_the_three_sums_of_the_source(data, width):
    confidence, correct = data
    kernel = np.exp(-np.abs(confidence[:, None] - confidence[None, :]) / width)
    right, wrong = (1 - confidence) * correct, confidence * ~correct
    m, rest = max(correct.sum(), 1), max((~correct).sum(), 1)
    total = right @ kernel @ right / m**2 + wrong @ kernel @ wrong / rest**2
    total -= 2 * right @ kernel @ wrong / (m * rest)
    assert cal.weighted_kce(*data, width) ** 2 == pytest.approx(max(total, 0), abs=1e-12)


def test_weighted_kce_needs_right_or_wrong():
    with pytest.raises(cal.InputError, match="fractions"):
        cal.weighted_kce([0.5, 0.6], [0.5, 1.0])


@settings(max_examples=50)
@given(classified(least=2, most=12), st.floats(0.1, 3), st.booleans())
def test_skce_is_its_double_sum(data, nu, unbiased):
    logits, labels = data
    estimator = "unbiased" if unbiased else "biased"
    expected = twin.skce(twin.softmax(logits), labels, nu, unbiased)
    assert cal.skce(logits, labels, from_logits=True, nu=nu, estimator=estimator) == pytest.approx(expected, abs=1e-12)


def test_skce_in_blocks_is_skce(monkeypatch):
    logits, labels = random_logits(60)
    whole = cal.skce(logits, labels, from_logits=True)
    monkeypatch.setattr("analysis.kernel_calibration._PAIRS", 60 * 5 * 7)
    assert cal.skce(logits, labels, from_logits=True) == pytest.approx(whole, abs=1e-15)


def test_unbiased_estimators_need_two_samples():
    with pytest.raises(cal.InputError, match="two samples; got 1"):
        cal.skce([[0.7, 0.3]], [0], from_logits=False, estimator="unbiased")
    with pytest.raises(SettingError, match="nu = 0"):
        cal.skce([[0.7, 0.3]], [0], from_logits=False, nu=0.0)


@pytest.mark.parametrize("bandwidth", [0.02, 0.1, 0.5])
def test_smooth_ece_at_a_bandwidth_is_the_integral(bandwidth):
    confidence, correct = random_samples(40)
    confidence[:3] = [0.0, 1.0, 0.5]
    found = cal.smooth_ece(confidence, correct, bandwidth)
    assert found == pytest.approx(twin.smoothed(confidence, correct, bandwidth), abs=1e-5)


@settings(max_examples=40)
@given(samples())
def test_smooth_ece_is_the_fixed_point(data):
    found = cal.smooth_ece(*data)
    assert 0 <= found <= cal.mean_absolute_gap(*data) + 1e-9
    if found > 0:
        assert cal.smooth_ece(*data, bandwidth=found) == pytest.approx(found, abs=1e-8)


def test_more_smoothing_never_raises_it():
    confidence, correct = random_samples(100)
    values = [cal.smooth_ece(confidence, correct, s) for s in np.geomspace(0.01, 2, 20)]
    assert (np.diff(values) <= 1e-12).all()
    assert values[-1] == pytest.approx(abs(cal.confidence_gap(confidence, correct)), abs=1e-5)


def test_smooth_ece_does_not_depend_on_the_grid():
    confidence, correct = random_samples(500)
    fine = cal.smooth_ece(confidence, correct, cells=2**16)
    assert cal.smooth_ece(confidence, correct) == pytest.approx(fine, abs=1e-5)


def test_smooth_ece_agrees_with_relplot_away_from_the_ends():
    # relplot cuts its kernel and weighs its mesh by density: near 0 and 1 it differs by more.
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.35, 0.65, 4000)
    correct = generator.uniform(size=4000) < confidence - 0.1
    theirs = relplot.smECE(confidence, correct.astype(float))
    assert cal.smooth_ece(confidence, correct) == pytest.approx(theirs, abs=2e-3)


def test_a_perfect_model_has_no_smooth_ece():
    assert cal.smooth_ece(np.ones(5), np.ones(5, dtype=bool)) == 0.0
