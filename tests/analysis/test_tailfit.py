"""The fit of the bound, on studies of known truth and on records."""

import numpy as np
import pandas as pd
import pytest

import analysis.tailfit as tailfit
from analysis.margin_tail import moment_share, tail_rate
from analysis.plugins import SettingError
from analysis.record import Runs
from analysis.tailfit import fit_bound
from tests.analysis.study_records import write
from tests.analysis.test_bounds import write_run
from tests.generators import generate


def fit(kind, seed=1, **options):
    frame = generate(kind, np.random.default_rng(seed)).frame()
    return fit_bound(frame, "ece", "lam", "Q", rivals=("loss", "gnorm"), **options)


def test_the_shared_law_is_found_where_it_is_true():
    found = fit("G1")
    assert found.verdict == "SUPPORTED"
    assert found.best("ece") in ("paper", "shared", "separate")
    assert found.interval[0] < 0 < found.interval[1]
    assert found.pvalue > 0.05


@pytest.mark.parametrize(("kind", "law"), [("G4", "saturating"), ("G6", "separate"), ("G2", "rival: loss")])
def test_the_law_that_made_the_data_wins_on_runs_left_out(kind, law):
    found = fit(kind)
    assert found.best("lam") == law
    assert (found.verdict == "REFUTED") == (kind != "G2")


def test_slopes_constants_and_errors_of_exact_power_laws():
    study = generate("G1", np.random.default_rng(0))
    frame = study.frame().assign(ece=lambda t: 3 * t.Q**1.0, lam=lambda t: 7 * t.Q**0.5)
    found = fit_bound(frame, "ece", "lam", "Q", rivals=())
    table = found.to_frame().set_index(["target", "model"])["loro"]
    assert table["ece", "paper"] == pytest.approx(0, abs=1e-12)
    assert table["lam", "separate"] == pytest.approx(0, abs=1e-12)
    # A slope that is off by 1/2 leaves half of log Q's spread; with a constant of the other runs.
    logs = np.log(study.Q)
    others = np.array([np.delete(logs.mean(axis=1), run).mean() for run in range(len(logs))])
    expected = np.sqrt(((logs - others[:, None]) ** 2).mean(axis=1)).mean() / 2
    assert table["lam", "paper"] == pytest.approx(expected, rel=1e-9)
    envelope = found.envelope.set_index(["target", "quantile"])
    assert envelope.loc[("ece", 0.5), "log_constant"] == pytest.approx(np.log(3))


def test_envelope_constants_cover_what_they_promise_on_runs_left_out():
    envelope = fit("G1").envelope
    assert (abs(envelope["coverage"] - envelope["quantile"]) < 0.1).all()


def test_one_optimizer_left_out():
    frames = []
    for code, kind in enumerate(("G1", "G6")):
        frame = generate(kind, np.random.default_rng(code)).frame()
        frames.append(frame.assign(optimizer=kind, run=frame["run"] + 100 * code))
    models = fit_bound(pd.concat(frames), "ece", "lam", "Q", rivals=()).models.set_index(["target", "model"])
    # The other optimizer's exponent is wrong for it, so leaving out the whole optimizer costs more than a run.
    assert models.loc[("lam", "separate"), "looo"] > 1.1 * models.loc[("lam", "separate"), "loro"]


def test_measured_norms_explain_sharpness_that_moves_with_them():
    study = generate("G1", np.random.default_rng(3))
    norm = np.exp(np.random.default_rng(4).normal(size=len(study.frame())))
    frame = study.frame().assign(jacobian_norm=norm)
    frame["lam"] *= norm**2
    assert fit_bound(frame, "ece", "lam", "Q", rivals=()).best("lam") == "normalised"


def test_records_and_their_table_agree(tmp_path):
    study = generate("G1", np.random.default_rng(5), T=60)
    runs = write(tmp_path, study)
    from_records = fit_bound(runs, rivals=("loss", "gradient_norm")).models
    from_table = fit_bound(study.frame().assign(optimizer="gd"), "ece", "lam", "Q", rivals=("loss", "gnorm")).models
    np.testing.assert_allclose(from_records["loro"], from_table["loro"], rtol=1e-6)


def test_too_few_runs_are_inconclusive_and_say_why():
    frame = generate("G1", np.random.default_rng(0)).frame().query("run == 0")
    found = fit_bound(frame, "ece", "lam", "Q")
    assert found.verdict == "INCONCLUSIVE"
    assert found.models.empty
    assert "only one" in found.summary()
    with pytest.raises(SettingError, match="target 'ece'"):
        found.best("ece")


def test_an_unknown_series_is_named():
    with pytest.raises(SettingError, match="series 'ecce'"):
        fit_bound(generate("G1", np.random.default_rng(0)).frame(), "ecce", "lam", "Q")


def test_tail_of_a_known_law():
    # m = log U / 2 has P(m <= t) = exp(2t): rate 2 at any threshold.
    margin = np.log(np.random.default_rng(6).random((3, 20_000))) / 2
    np.testing.assert_allclose(tail_rate(margin, 0.1), 2, rtol=0.08)
    np.testing.assert_allclose(tail_rate(margin, 1.0), 2, rtol=0.03)
    assert np.isinf(tail_rate(np.zeros(30)))


def test_share_of_the_moment():
    assert moment_share(np.zeros(100), 0.1) == pytest.approx(0.1)
    margin = np.array([-5.0, *np.zeros(99)])
    assert moment_share(margin, 0.01) == pytest.approx(np.exp(5) / (np.exp(5) + 99), rel=1e-12)
    assert moment_share(margin, 1.0) == pytest.approx(1)
    # No overflow.
    assert moment_share(np.array([-2000.0, 0.0]), 0.5) == 1
    with pytest.raises(SettingError, match="share = 0: expected a number"):
        moment_share(margin, 0)


def test_tails_of_records(tmp_path):
    run = write_run(tmp_path)
    tails = tailfit.margin_tails(Runs.open(tmp_path))
    margin = run.column("examples_train", "margin").astype(float)
    assert tails["share_10"].iloc[0] == pytest.approx(np.median(moment_share(margin, 0.1)))
