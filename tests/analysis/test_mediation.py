"""Mediation and exponents: error rates on studies of known truth, the gate, and the spline against patsy."""

import warnings
from functools import cache

import numpy as np
import patsy
import pytest

from analysis.exponents import exponents, over_runs
from analysis.mediation import mediate
from analysis.plugins import SettingError
from analysis.spline import KNOT_QUANTILES, held_out_errors, residuals, restricted_cubic
from tests.analysis.study_records import write
from tests.generators import generate

M = 40


pytestmark = pytest.mark.filterwarnings("error")


def frame(kind="G1", seed=0, **settings):
    return generate(kind, np.random.default_rng(seed), **settings).frame()


@cache
def verdicts(kind):
    found = [mediate(frame(kind, seed), "Q", ["loss", "gnorm"], x="ece", y="lam") for seed in range(2000, 2000 + M)]
    return {v: np.mean([r.verdict == v for r in found]) for v in ("SUPPORTED", "REFUTED")} | {
        "open": np.mean([r.residual is not None for r in found])
    }


def test_complete_mediation_is_supported():
    assert verdicts("G1")["SUPPORTED"] >= 0.7
    assert verdicts("G1")["REFUTED"] <= 0.1


@pytest.mark.parametrize("kind", ["G2", "G3", "GE"])
def test_a_proxy_a_second_factor_and_a_tie_are_refuted(kind):
    assert verdicts(kind)["REFUTED"] >= 0.9
    assert verdicts(kind)["SUPPORTED"] <= 0.05


def test_the_gate_keeps_independent_series_out():
    assert verdicts("G0")["open"] <= 0.15
    assert verdicts("G0")["REFUTED"] <= 0.15  # without the gate .95
    shut = mediate(frame("G0"), "Q", ["loss"], x="ece", y="lam")
    assert (shut.verdict, shut.pvalue, shut.estimate, shut.interval) == ("INCONCLUSIVE", None, None, None)
    assert "no supported coupling to explain" in shut.reason
    assert shut.to_frame().empty


def test_a_rival_that_is_the_driver_beats_its_proxy():
    # In G2 both series follow the loss, of which Q is a proxy.
    result = mediate(frame("G2"), "Q", ["loss", "gnorm"], x="ece", y="lam")
    loss = next(r for r in result.rivals if r.name == "loss")
    assert loss.wins
    assert min(loss.gain_x, loss.gain_y) > 0
    assert loss.pvalue_holm >= max(loss.pvalue_x, loss.pvalue_y)
    weak = next(r for r in mediate(frame("G1"), "Q", ["loss", "gnorm"], x="ece", y="lam").rivals if r.name == "gnorm")
    assert not weak.wins
    assert max(weak.gain_x, weak.gain_y) < 0


def test_result_reads_as_a_test():
    result = mediate(frame(), "Q", ["loss"], x="ece", y="lam")
    assert result.verdict == "SUPPORTED"
    assert result.pvalue > 0.05
    assert -0.1 <= result.interval[0] < result.estimate < result.interval[1] <= 0.1
    assert result.to_frame()["test"].tolist() == ["residual", "rival"]
    assert "rival loss" in result.summary()
    # Names of the generators stand for the full ones, and what a table has is compared by default.
    default = mediate(frame())
    assert default.residual == result.residual
    assert [r.name for r in default.rivals] == ["loss", "gradient_norm"]


def test_records_answer_as_the_table_does(tmp_path):
    study = generate("G1", np.random.default_rng(4), T=60)
    runs = write(tmp_path, study)
    found, expected = mediate(runs), mediate(study.frame(), "Q", x="ece", y="lam")
    assert found.verdict == expected.verdict
    assert found.residual.whitened.value == pytest.approx(expected.residual.whitened.value, rel=1e-6)
    assert {r.name for r in found.rivals} == {"loss", "gradient_norm"}
    assert exponents(runs).estimate == pytest.approx(exponents(study.frame(), "ece", "lam", "Q").estimate)


def test_hostile_inputs():
    table = frame()
    result = mediate(table.assign(Q=1.0), "Q", ["loss"], x="ece", y="lam")
    assert (result.verdict, result.pvalue) == ("INCONCLUSIVE", None)
    assert "Q is constant in run" in result.reason
    exact = mediate(table.assign(ece=table["Q"] * 2), "Q", ["loss"], x="ece", y="lam")
    assert (exact.verdict, exact.pvalue) == ("INCONCLUSIVE", None)
    assert "function of Q" in exact.reason
    assert mediate(frame(seeds=2), "Q", ["loss"], x="ece", y="lam").verdict == "INCONCLUSIVE"
    with pytest.raises(SettingError, match="run 0: Q is 0 at step 0"):
        mediate(table.assign(Q=table["Q"].where(table.index > 0, 0.0)), "Q", ["loss"], x="ece", y="lam")
    with pytest.raises(SettingError, match="series 'temperature': no such column"):
        mediate(table, "Q", ["temperature"], x="ece", y="lam")
    with pytest.raises(SettingError, match="expected different series"):
        mediate(table, "ece", ["loss"], x="ece", y="lam")


def test_spline_spans_the_natural_splines_of_patsy():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(3, 80)), random.normal(size=(3, 80))
    knots = np.quantile(x, KNOT_QUANTILES)
    basis = restricted_cubic(x)
    assert basis.shape == (3, 80, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        design = np.asarray(
            patsy.dmatrix(
                "cr(x, knots=inner, lower_bound=low, upper_bound=high) - 1",
                {"x": x.ravel(), "inner": knots[1:-1], "low": knots[0], "high": knots[-1]},
            )
        )
    expected = y.ravel() - design @ np.linalg.lstsq(design, y.ravel(), rcond=None)[0]
    np.testing.assert_allclose(residuals(basis, y).ravel(), expected, atol=1e-8)


def test_held_out_errors_are_those_of_refitting():
    random = np.random.default_rng(1)
    x = random.normal(size=(4, 50))
    y = np.sin(x) + 0.1 * random.normal(size=x.shape)
    basis = restricted_cubic(x)
    for run in range(4):
        rest = np.delete(basis, run, axis=0).reshape(-1, 5)
        weights = np.linalg.lstsq(rest, np.delete(y, run, axis=0).ravel(), rcond=None)[0]
        expected = np.mean((y[run] - basis[run] @ weights) ** 2)
        assert held_out_errors(basis, y)[run] == pytest.approx(expected, rel=1e-8)


def test_tied_knots_do_no_harm():
    x = np.repeat([[0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]], 5, axis=0)
    assert np.abs(residuals(restricted_cubic(x), x)).max() < 1e-12


def test_exponents_recover_the_truth():
    differing = exponents(frame("G6"), "ece", "lam", "Q")
    assert differing.verdict == "REFUTED"
    assert differing.estimate == pytest.approx(0.3, abs=0.1)
    assert [slope.outcome for slope in differing.slopes] == ["SUPPORTED", "REFUTED", "REFUTED"]
    shared = exponents(frame("G1"), "ece", "lam", "Q")
    assert shared.verdict == "SUPPORTED"
    assert shared.interval[0] < shared.estimate < shared.interval[1]
    assert shared.to_frame()["claimed"].tolist() == [1, 1, 0]
    study = generate("G1", np.random.default_rng(0))
    slope = np.polyfit(np.log(study.Q[5]), np.log(study.lam[5]), 1)[0]
    assert shared.per_run["alpha_y"][5] == pytest.approx(slope)


def test_exponents_of_saturating_sharpness_are_not_shared():
    found = [exponents(frame("G4", seed), "ece", "lam", "Q") for seed in range(10)]
    assert sum(result.verdict == "REFUTED" for result in found) >= 8


def test_size_of_the_exponent_tests():
    found = [exponents(frame("G1", seed), "ece", "lam", "Q").slopes for seed in range(3000, 3060)]
    rates = np.mean([[slope.pvalue <= 0.05 for slope in slopes] for slopes in found], axis=0)
    assert (rates <= 0.07 + 3 * np.sqrt(0.05 * 0.95 / 60)).all()


def test_over_runs_decides_by_margin_and_test():
    values = np.array([0.5, 0.5, 0.5])
    assert over_runs("a", values, 1.0).outcome == "REFUTED"
    assert over_runs("a", values, 0.45).outcome == "SUPPORTED"
    assert over_runs("a", np.array([0.0, 2.0, 1.0]), 1.0).outcome == "INCONCLUSIVE"
    few = exponents(frame(lrs=(0.1,), seeds=2), "ece", "lam", "Q")
    assert (few.verdict, few.pvalue) == ("INCONCLUSIVE", None)
