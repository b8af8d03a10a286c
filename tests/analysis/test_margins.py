"""Margins and their moments against exact arithmetic, and the links between them."""

from fractions import Fraction
from math import exp, log

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import margins
from analysis.predictions import InputError
from tests.analysis.calibration_cases import classified, random_logits


def exact(logits: np.ndarray, k: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """log p_k and log(1 - p_k) in 400 digits."""
    with mpmath.workdps(400):
        powers = [mpmath.exp(mpmath.mpf(float(z))) for z in logits]
        own, total = powers[k], mpmath.fsum(powers)
        return mpmath.log(own / total), mpmath.log((total - own) / total)


@settings(max_examples=60)
@given(classified(most=4))
def test_logarithms_of_probabilities_are_exact_where_the_probabilities_saturate(data):
    logits, labels = data
    top = logits.argmax(axis=1)
    for i, (z, y) in enumerate(zip(logits, labels, strict=True)):
        log_p, log_rest = exact(z, int(y))
        assert margins.log_p_true(logits, labels)[i] == pytest.approx(float(log_p), rel=1e-12, abs=1e-300)
        assert margins.log_one_minus_p_true(logits, labels)[i] == pytest.approx(float(log_rest), rel=1e-12, abs=1e-300)
        top_rest = float(exact(z, int(top[i]))[1])
        assert margins.log_one_minus_confidence(logits)[i] == pytest.approx(top_rest, rel=1e-12)


@given(classified())
def test_margins_are_differences_of_logits(data):
    logits, labels = data
    for i, (z, y) in enumerate(zip(logits.tolist(), labels.tolist(), strict=True)):
        rest = max(value for k, value in enumerate(z) if k != y)
        ordered = sorted(z)
        assert margins.true_margin(logits, labels)[i] == float(Fraction(z[y]) - Fraction(rest))
        assert margins.predicted_margin(logits)[i] == float(Fraction(ordered[-1]) - Fraction(ordered[-2]))


@given(classified())
def test_the_chain_from_one_minus_p_to_the_moment_holds(data):
    logits, labels = data
    m, classes = margins.true_margin(logits, labels), logits.shape[1]
    mean = np.exp(margins.log_one_minus_p_true(logits, labels)).mean()
    sigmoid = margins.sigmoid_moment(m, classes)
    assert mean <= sigmoid * (1 + 1e-12)
    assert sigmoid <= min(1, (classes - 1) * margins.exp_moment(m)) * (1 + 1e-12)
    assert margins.exp_moment(margins.predicted_margin(logits)) <= min(1, margins.exp_moment(m)) * (1 + 1e-12)


@given(st.lists(st.floats(-600, 600), min_size=1, max_size=20))
def test_the_moment_is_the_exponential_of_its_logarithm(values):
    expected = sum(exp(-m) for m in values) / len(values)
    assert margins.exp_moment(values) == pytest.approx(expected, rel=1e-12)
    assert margins.log_exp_moment(values) == pytest.approx(log(expected), rel=1e-12, abs=1e-12)


def test_the_log_moment_does_not_overflow():
    assert margins.exp_moment([-1000.0, 0.0]) == np.inf
    assert margins.log_exp_moment([-1000.0, 0.0]) == pytest.approx(1000 - log(2), rel=1e-15)
    assert margins.log_exp_moment([2000.0, 2000.0]) == -2000.0


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=20), st.floats(-20, 20))
def test_the_tail_counts_and_obeys_markov(values, threshold):
    found = margins.tail(values, [threshold])
    assert found.tolist() == [sum(m <= threshold for m in values) / len(values)]
    assert found[0] <= exp(threshold) * margins.exp_moment(values) * (1 + 1e-12)


def test_a_trajectory_goes_in_whole():
    logits, labels = random_logits(60)
    logits = logits.reshape(3, 20, 5)
    found = margins.true_margin(logits, labels[:20])
    np.testing.assert_array_equal(found[1], margins.true_margin(logits[1], labels[:20]))
    assert margins.exp_moment(found).shape == (3,)
    assert margins.tail(found, [0.0, 1.0]).shape == (3, 2)
    np.testing.assert_allclose(margins.log_odds(logits), np.stack([margins.log_odds(z) for z in logits]), rtol=0)


@given(classified())
def test_log_odds_are_the_difference_of_two_logarithms(data):
    logits, labels = data
    odds = np.take_along_axis(margins.log_odds(logits), labels[:, None], axis=1)[:, 0]
    expected = margins.log_p_true(logits, labels) - margins.log_one_minus_p_true(logits, labels)
    np.testing.assert_allclose(odds, expected, rtol=1e-9, atol=1e-9)


def test_bad_margins_are_refused():
    with pytest.raises(InputError, match="margin at 1 is nan"):
        margins.exp_moment([0.0, np.nan])
    with pytest.raises(InputError, match="empty"):
        margins.log_exp_moment([])
    with pytest.raises(InputError, match="label at 1 is 5; expected 0 to 1"):
        margins.true_margin([[1.0, 0.0], [0.0, 1.0]], [0, 5])
