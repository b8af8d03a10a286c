"""The coupling verdict: error rates on studies of known truth, windows, lags, tables, records, hostile inputs."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.coupling import couple
from analysis.naive import effective_size
from analysis.plugins import SettingError
from analysis.power import ALTERNATIVES, Alternative, plan, simulate
from tests.analysis.study_records import write
from tests.generators import LRS, generate

M = 60
CHANCE = 3 * np.sqrt(0.05 * 0.95 / M)
"""Three Monte Carlo standard errors of a rate of .05."""


pytestmark = pytest.mark.filterwarnings("error")


def frame(kind="G1", seed=0, **settings):
    return generate(kind, np.random.default_rng(seed), **settings).frame()


@cache
def results(kind, first=1000):
    return [couple(frame(kind, seed), "ece", "lam") for seed in range(first, first + M)]


def rate(kind, verdict):
    return np.mean([result.verdict == verdict for result in results(kind)])


@pytest.mark.parametrize("kind", ["G0", "G0S", "G0C", "G0D", "G0W", "G1S"])
def test_size_where_nothing_is_coupled(kind):
    assert np.mean([result.pvalue <= 0.05 for result in results(kind)]) <= 0.05 + CHANCE
    assert rate(kind, "SUPPORTED") <= 0.025 + CHANCE


def test_pooling_over_learning_rates_would_fail_where_they_share_a_clock():
    pooled = [
        couple(generate("G0C", np.random.default_rng(s)).frame().assign(lr=s % 2), "ece", "lam", within=("lr",))
        for s in range(20)
    ]
    assert all("one stratum" in result.reason for result in pooled)
    assert np.mean([result.pvalue <= 0.05 for result in pooled]) > 0.5


@pytest.mark.parametrize(
    ("kind", "verdict", "least"),
    [("G1", "SUPPORTED", 0.95), ("G1W", "SUPPORTED", 0.6), ("G5", "REFUTED", 0.95), ("G0D", "REFUTED", 0.6)],
)
def test_power(kind, verdict, least):
    assert rate(kind, verdict) >= least


def test_replicas_are_inconclusive():
    assert rate("G1S", "REFUTED") <= 0.025 + CHANCE


def test_naive_pearson_is_wrong_and_called_descriptive():
    tables = [result.descriptive for result in results("G0")]
    assert np.mean([(table["p"] <= 0.05).mean() for table in tables]) > 0.95
    assert np.mean([table["r"].mean() for table in tables]) == pytest.approx(0.83, abs=0.05)
    summary = results("G0")[0].summary()
    assert summary.index("rho_seed") < summary.index("descriptive only") < summary.index("Pearson")


def test_descriptive_numbers_are_those_of_scipy():
    study = generate("G1", np.random.default_rng(2))
    table = couple(study.frame(), "ece", "lam").descriptive
    r, p = stats.pearsonr(study.ece[4], study.lam[4])
    assert (table["r"][4], table["p"][4]) == pytest.approx((r, p), rel=1e-8)
    d = stats.pearsonr(np.diff(study.ece[4]), np.diff(study.lam[4]))
    assert (table["r_differences"][4], table["p_differences"][4]) == pytest.approx(d, rel=1e-8)
    logs = np.log(study.ece), np.log(study.lam)
    assert table["r_log"][4] == pytest.approx(np.corrcoef(logs[0][4], logs[1][4])[0, 1])
    others = np.mean([np.corrcoef(logs[0][4], logs[1][j])[0, 1] for j in (3, 5)])
    assert table["r_log_other"][4] == pytest.approx(others)
    n = table["n_effective"][4]
    t = abs(r) * np.sqrt((n - 2) / (1 - r**2))
    assert table["p_effective"][4] == pytest.approx(2 * stats.t.sf(t, n - 2), rel=1e-8)


def test_effective_size_follows_bartlett():
    x, y = np.random.default_rng(0).normal(size=(2, 200)).cumsum(axis=1)

    def r(series, k):
        c = series - series.mean()
        return c[k:] @ c[: len(c) - k] / (c @ c)

    total = sum((1 - k / 200) * r(x, k) * r(y, k) for k in range(1, 51))
    assert effective_size(x, y) == pytest.approx(max(3, 200 / (1 + 2 * total)))


def test_lag_is_found_and_only_where_there_is_one():
    for seed in range(5):
        late = couple(frame("G7", seed), "ece", "lam", lags=20).lag
        assert abs(late.mean - 10) <= 1
        assert late.pvalue < 1e-6
        assert couple(frame("G7", seed), "lam", "ece", lags=20).lag.mean == -late.mean
        assert couple(frame("G1", seed), "ece", "lam", lags=20).lag.pvalue > 0.05


def test_lag_is_in_steps():
    table = frame("G7")
    found = couple(table.assign(step=table["step"] * 50), "ece", "lam", lags=20).lag
    assert found.mean == 500
    assert found.largest == 1000
    uneven = couple(table[table["step"] != 7], "ece", "lam", lags=20)
    assert uneven.lag is None
    assert any("evenly spaced" in note for note in uneven.notes)


def test_windows():
    table = frame("G1").assign(accuracy_train=lambda t: np.where(t["step"] < 100, 0.9, 1.0))
    assert couple(table, "ece", "lam", window=(50, 149)).steps == (100, 100)
    assert couple(table, "ece", "lam", window="interpolating").steps == (200, 200)
    study = generate("G1", np.random.default_rng(0))
    peaks = [np.log(study.lam[3 * s : 3 * s + 3]).mean(axis=0).argmax() + 1 for s in range(4)]
    early = couple(table, "ece", "lam", window="before_peak")
    assert early.steps == (min(p for p in peaks if p >= 30), max(peaks))
    assert early.window == "before_peak"
    cut = couple(table[table["step"].between(50, 149)], "ece", "lam")
    assert couple(table, "ece", "lam", window=(50, 149)).association == cut.association
    with pytest.raises(SettingError, match="accepted: 'all'"):
        couple(table, "ece", "lam", window="late")
    with pytest.raises(SettingError, match="accuracy_train"):
        couple(frame(), "ece", "lam", window="interpolating")


def test_order_of_rows_and_names_of_runs_do_not_matter():
    table = frame("G1W", 3)
    other = table.sample(frac=1, random_state=0).assign(run=lambda t: "run " + t["run"].astype(str))
    assert couple(other, "ece", "lam").pvalue == couple(table, "ece", "lam").pvalue
    renamed = table.rename(columns={"lr": "stratum", "ece": "x", "lam": "y"})
    assert couple(renamed, "x", "y").association == couple(table, "ece", "lam").association


def test_records_answer_as_the_table_does(tmp_path):
    study = generate("G1W", np.random.default_rng(4), T=60)
    runs = write(tmp_path, study, accuracy=0.5)
    found, expected = couple(runs), couple(study.frame(), "ece", "lam")
    assert found.pvalue == pytest.approx(expected.pvalue)
    assert found.estimate == pytest.approx(expected.estimate)
    assert found.interval == pytest.approx(expected.interval)
    assert couple(runs, window="interpolating", within=("lr",)).reason  # 20 steps only
    assert couple(runs, "loss", "lambda_max").runs == 12


def test_result_reads_as_a_test():
    result = couple(frame("G1"), "ece", "lam")
    assert result.verdict == "SUPPORTED"
    assert result.pvalue == result.smallest_pvalue == 1 / 1296
    assert result.interval[0] < result.estimate < result.interval[1]
    assert result.own_seed_r > result.other_seed_r
    table = result.to_frame()
    assert table["form"].tolist() == ["level", "whitened"]
    assert table["rho"].tolist() == [result.estimate, result.association.whitened.value]
    assert "SUPPORTED" in result._repr_html_()


def test_control_series_decide_whether_nothing_means_something():
    shown = [couple(frame("G0D", s), "ece", "lam") for s in range(12)]
    refuted = [r for r in shown if r.verdict == "REFUTED" and r.controls]
    assert len(refuted) >= 6
    best = {
        c.series: min(d.pvalue_holm for d in refuted[0].controls if d.series == c.series) for c in refuted[0].controls
    }
    assert set(best) == {"ece", "lam"}
    assert max(best.values()) <= 0.05
    kept = next(s for s, r in enumerate(shown) if r is refuted[0])
    without = couple(frame("G0D", kept), "ece", "lam", controls=["Q"])
    assert without.verdict == "INCONCLUSIVE"
    assert "no control series shows a run-specific signal of lam" in without.reason


# Hostile inputs: a clear INCONCLUSIVE, or an error that names the run; never a library's warning and a number.


def changed(column, value, run=5, steps=slice(10, 11), kind="G1"):
    table = frame(kind)
    rows = table.index[table["run"] == run][steps]
    table.loc[rows, column] = value
    return table


def test_constant_series():
    for steps_of in (changed("ece", 0.1, steps=slice(None)), frame().assign(lam=3.0)):
        result = couple(steps_of, "ece", "lam")
        assert (result.verdict, result.pvalue, result.estimate) == ("INCONCLUSIVE", None, None)
        assert "constant in run" in result.reason
        assert result.to_frame().empty
    assert "constant in run 5:" in couple(changed("ece", 0.1, steps=slice(None)), "ece", "lam").reason


def test_replicas():
    table = frame()
    same = table.assign(lam=np.tile(table["lam"][:300], 12))
    result = couple(same, "ece", "lam")
    assert (result.verdict, result.pvalue) == ("INCONCLUSIVE", None)
    assert "no run differs" in result.reason


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "run 5: ece is NaN at step 10, where other runs"),
        (np.inf, "run 5: ece is infinite at step 10"),
        (0.0, "run 5: ece is 0 at step 10; the test takes logarithms"),
        (-0.25, "run 5: ece is -0.25 at step 10; the test takes logarithms"),
    ],
)
def test_values_without_a_logarithm(value, message):
    with pytest.raises(SettingError, match=message):
        couple(changed("ece", value), "ece", "lam")


def test_steps_not_measured_in_any_run_are_left_out():
    table = frame()
    sparse = table.assign(lam=table["lam"].where(table["step"] % 5 == 0))
    assert couple(sparse, "ece", "lam").association == couple(table[table["step"] % 5 == 0], "ece", "lam").association


def test_a_run_cut_short():
    table = frame()
    cut = table[(table["run"] != 5) | (table["step"] < 120)]
    result = couple(cut, "ece", "lam")
    assert result.steps == (120, 300)
    assert any("aligned on the 120 steps" in note and "run 5: 120" in note for note in result.notes)
    assert "aligned" in result.summary()
    very = couple(table[(table["run"] != 5) | (table["step"] < 12)], "ece", "lam")
    assert very.strata == 3
    assert any("left out: 12 common steps" in note for note in very.notes)
    assert any("fewest in run 5: 12" in note for note in very.notes)


def test_different_lengths():
    table = frame()
    lengths = 300 - 10 * table["run"]
    result = couple(table[table["step"] < lengths], "ece", "lam")
    assert result.steps == (190, 280)
    assert sum("aligned" in note for note in result.notes) == 4


def test_one_seed_two_seeds_one_learning_rate():
    one = couple(frame(seeds=1), "ece", "lam")
    assert (one.verdict, one.pvalue) == ("INCONCLUSIVE", None)
    assert "is its only one" in one.reason
    two = couple(frame(seeds=2), "ece", "lam")
    assert (two.verdict, two.smallest_pvalue) == ("INCONCLUSIVE", 1 / 16)
    assert "has 2 runs (the smallest attainable p is 0.0625)" in two.reason
    rate = couple(frame(lrs=(0.1,)), "ece", "lam")
    assert rate.verdict == "INCONCLUSIVE"
    assert "one stratum only (the smallest attainable p is 0.167)" in rate.reason
    few = couple(frame(lrs=LRS[:2]), "ece", "lam")
    assert any("little power" in note for note in few.notes)


def test_a_table_that_is_no_study():
    table = frame()
    cases = [
        (table.drop(columns="run"), "no column 'run'"),
        (table.drop(columns="lam"), "series 'lam': no such column in the table; its columns are ece, Q, loss, gnorm"),
        (pd.concat([table, table.iloc[7:8]]), "run 0: step 7 is there twice"),
        (table.assign(lr=table["step"]), "run 0: lr changes within the run"),
        (table.assign(lr=table["lr"].where(table["run"] != 4)), "run 4: lr changes within the run, or is missing"),
        (table.assign(step="first"), "series 'step': has values that are not numbers"),
        (table.iloc[:0], "there are none"),
        (table.assign(lam="high"), "series 'lam': has values that are not numbers"),
        (table.assign(run=table["run"].where(table["run"] != 2)), "column 'run' has missing values"),
    ]
    for hostile, message in cases:
        with pytest.raises(SettingError, match=message):
            couple(hostile, "ece", "lam")
    with pytest.raises(SettingError, match="two different series"):
        couple(table, "Q", "exp_moment")
    with pytest.raises(SettingError, match="there are none"):
        couple([], "ece", "lam")


# Power planning


def test_plan_tells_power_and_what_cannot_be_shown():
    found = plan(4, 3, 300, studies=40)
    assert found.smallest_pvalue == 1 / 1296
    assert found.supported["G1"] >= 0.95
    assert 0.5 <= found.supported["G1W"] <= 0.98
    assert found.to_frame()["alternative"].tolist() == ["G1", "G1W"]
    small = plan(4, 2, 300, studies=5)
    assert small.smallest_pvalue == 1 / 16
    assert set(small.supported.values()) == {0.0}
    assert "always INCONCLUSIVE" in small.summary()
    with pytest.raises(SettingError, match="seeds = 0"):
        plan(seeds=0)
    with pytest.raises(SettingError, match="accepted: G1, G1W"):
        plan(alternatives=["G9"])


def test_planned_studies_are_those_of_the_generators():
    quiet = Alternative(0.25, 0.0, 0.0)
    x, y = simulate(quiet, np.array(LRS), 3, 300, np.random.default_rng(3))
    known = generate("G1", np.random.default_rng(3), sigma_q=0, sigma_own=0)
    np.testing.assert_allclose(x, np.log(known.ece / 0.3), atol=1e-10)
    np.testing.assert_allclose(y, np.log(known.lam / 20), atol=1e-10)
    for kind in ("G1", "G1W"):
        random = np.random.default_rng(0)
        ours = np.concatenate(
            [np.subtract(*simulate(ALTERNATIVES[kind], np.array(LRS), 3, 300, random)) for _ in range(20)]
        )
        theirs = np.concatenate(
            [np.log(s.ece / 0.3) - np.log(s.lam / 20) for s in (generate(kind, random) for _ in range(20))]
        )
        assert ours.std() == pytest.approx(theirs.std(), rel=0.1)
        assert np.diff(ours).std() == pytest.approx(np.diff(theirs).std(), rel=0.02)


def test_a_stratum_of_unlike_records(tmp_path):
    study = generate("G1", np.random.default_rng(0), T=40)
    write(tmp_path, study)
    runs = write(tmp_path, study, loss={"name": "mse"})
    with pytest.raises(SettingError, match=r"differ in loss\.name, but are both in stratum"):
        couple(runs)
    assert couple(runs, within=("loss.name", "lr")).strata == 8
    with pytest.raises(SettingError, match=r"add 'optimizer\.lr' to within"):
        couple(runs.select(loss="ce"), within=("optimizer",))
    with pytest.raises(SettingError, match="is there twice"):
        couple([*runs, runs[0]])
