"""The closed-form checks, and that each can fail."""

import numpy as np
import pytest

from analysis import theory
from analysis.plugins import SettingError
from analysis.theory import TOLERANCE, excess, label_swap, mse_confidence, saturating_example, verify_theory


def test_every_statement_holds_on_random_cases():
    result = verify_theory(cases=3000, seed=7)
    assert result.holds, result.summary()
    frame = result.to_frame()
    assert (frame["cases"] > 0).all()
    assert len(frame) > 30
    assert frame.loc[frame["kind"] == "equality", "worst"].max() <= TOLERANCE
    assert "of 3" in result.summary()
    assert "<table" in result._repr_html_()


@pytest.mark.slow
def test_every_statement_holds_on_a_hundred_thousand_cases():
    assert verify_theory(cases=100_000, seed=0).holds


def test_a_wrong_constant_is_noticed(monkeypatch):
    right = theory.ece_chain

    def wrong(samples, bins=15):
        terms = right(samples, bins)
        return terms | {"bound_ece": terms["bound_ece"] * 0.999}

    monkeypatch.setattr(theory, "ece_chain", wrong)
    result = verify_theory(cases=500)
    assert not result.holds
    assert "FAILED: sigmoid_moment <= bound_ece" in result.summary()


def test_excess_is_relative_and_skips_what_does_not_apply():
    nan, inf = np.nan, np.inf
    assert excess(np.array([1.0, 5.0, 2.0]), np.array([1.0, nan, 4.0])) == 0
    assert excess(np.array([3.0, 1.0]), np.array([2.0, inf])) == 0.5


def test_sharpness_vanishes_while_calibration_error_stays():
    calibration, sharpness = saturating_example(np.array([2.0, 10.0, 20.0]))
    assert calibration[1:] == pytest.approx(1 / (1 + np.exp(10.0)), rel=1e-6)
    assert (np.diff(sharpness) < 0).all()
    assert sharpness[-1] < 1e-34
    # By hand: lambda = J^T H J with J = s (1, -1), H = p(1-p) [[1, -1], [-1, 1]], s = 5 sech^2(theta).
    s, z = 5 / np.cosh(2.0) ** 2, 10 * np.tanh(2.0)
    assert sharpness[0] == pytest.approx(4 * s**2 * np.exp(-z) / (1 + np.exp(-z)) ** 2, rel=1e-12)


def test_swapped_labels():
    assert label_swap() == pytest.approx((0.0007, 0.9993), abs=1e-12)


def test_mse_stays_underconfident():
    assert mse_confidence(10) == pytest.approx(np.e / (np.e + 9), abs=1e-12)


def test_too_few_cases_are_refused():
    with pytest.raises(SettingError, match="cases = 5: expected 100 or more"):
        verify_theory(5)
