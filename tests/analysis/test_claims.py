"""Verdicts on the claims: from synthetic studies of known truth, and without records."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.claims import CLAIMS, Claim
from analysis.claims._contrasts import Mean, decide_above, decide_equal, difference, mean
from analysis.claims._studies import final, paper_number, studies
from analysis.plugins import SettingError
from analysis.record import Runs, Writer
from analysis.results import Outcome
from analysis.verdicts import judge, verdict_table, verify, write_verdicts
from figures.paper import items
from runners.spec import EXPERIMENTS, read_experiment
from tests.analysis.study_records import write
from tests.generators import generate


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """gd: coupled, mediated by Q. sam: coupled the wrong way. muon: failed runs only. sgd with MSE."""
    folder = tmp_path_factory.mktemp("records")
    write(folder, generate("G1", np.random.default_rng(0), T=200), "gd")
    write(folder, generate("G5", np.random.default_rng(1), T=200), "sam")
    write(folder, generate("G1", np.random.default_rng(2), T=40), "muon", status="diverged")
    write(folder, generate("G1", np.random.default_rng(3), T=60), "sgd", loss={"name": "mse"})
    return Runs.open(folder)


def outcomes(verdicts):
    return {verdict.statement: verdict.outcome.value for verdict in verdicts}


def test_each_file_states_its_claim():
    assert len(CLAIMS.names()) >= 10
    for name in CLAIMS.names():
        claim = CLAIMS.get(name)
        assert claim.title
        for word in ("estimand", "test", "unit", "window", "falsifier"):
            assert word in claim.__doc__.lower(), f"{name} does not state its {word}"


def test_without_records_each_claim_says_which_are_needed():
    verdicts = verify([])
    assert {verdict.claim for verdict in verdicts} == {CLAIMS.get(name).title for name in CLAIMS.names()}
    assert {verdict.outcome.value for verdict in verdicts} == {"INCONCLUSIVE"}
    assert all(re.search(r"margintail (run|reproduce) \w", verdict.reason) for verdict in verdicts)


def test_commands_name_experiments_and_settings_that_exist():
    for name in CLAIMS.names():
        for command in CLAIMS.get(name).command.split("; "):
            program, verb, what, *options = command.split()
            assert program == "margintail"
            if verb == "reproduce":
                assert options == ["--scale", "smoke"]
                assert read_experiment(EXPERIMENTS / f"{items()[what].preset('smoke')}.toml")
                continue
            assert (verb, what) == ("run", "demo")
            settings = dict(options[i + 1].split("=") for i, word in enumerate(options) if word == "--set")
            settings = {key: int(value) if value.isdigit() else value for key, value in settings.items()}
            assert read_experiment(EXPERIMENTS / "demo.toml", settings)


@pytest.mark.parametrize(
    ("claim", "what", "losses"), [("c4_calmo", "table2", {"ce", "calmo"}), ("c6_mse", "figA19", {"mse"})]
)
def test_the_preset_of_a_claim_has_the_runs_it_is_judged_by(claim, what, losses):
    assert what in CLAIMS.get(claim).command
    specs = read_experiment(EXPERIMENTS / f"{items()[what].preset('smoke')}.toml")
    for optimizer in {spec.optimizer.name for spec in specs}:
        for loss in losses:
            seeds = {spec.seed for spec in specs if (spec.optimizer.name, spec.loss.name) == (optimizer, loss)}
            assert len(seeds) >= 3


def test_coupling_per_optimizer_and_metric(runs):
    verdicts = verify(runs, ["c1_train_coupling"])
    found = outcomes(verdicts)
    assert found["train ECE and sharpness are coupled (gd)"] == "SUPPORTED"
    assert found["train KCE and sharpness are coupled (gd)"] == "SUPPORTED"
    assert found["train ECE and sharpness are coupled (sam)"] == "REFUTED"
    gd = verdicts[0]
    assert (gd.runs, gd.paper, gd.pvalue) == (12, 0.83, 1 / 1296)
    assert gd.pvalue_holm == pytest.approx(4 / 1296)
    assert "with other seeds" in gd.reason
    last = verdicts[-1]
    assert last.outcome == "INCONCLUSIVE"
    assert "no runs of sgd, adamw, muon" in last.reason  # muon diverged, sgd has another loss


def test_test_coupling_needs_test_records(runs):
    verdicts = verify(runs, ["c1t_test_coupling"])
    # ece is a scalar without a split here, so the test split answers as train does.
    assert outcomes(verdicts)["test ECE and sharpness are coupled (gd)"] == "SUPPORTED"


def test_absent_coupling_is_claimed_of_adamw(tmp_path):
    coupled = write(tmp_path / "a", generate("G1", np.random.default_rng(0), T=120), "adamw")
    assert verify(coupled, ["c1t_test_coupling"])[0].outcome == "REFUTED"
    opposed = write(tmp_path / "b", generate("G5", np.random.default_rng(0), T=120), "adamw")
    assert verify(opposed, ["c1t_test_coupling"])[0].outcome == "SUPPORTED"


def test_mediation_and_exponents(runs):
    mediation = outcomes(verify(runs, ["c3_mediation"]))
    assert mediation["Q explains the coupling of train ECE and sharpness (gd)"] == "SUPPORTED"
    assert mediation["Q explains the coupling of train ECE and sharpness (sam)"] == "INCONCLUSIVE"
    found = verify(runs, ["c3_exponents"])
    whole = {v.statement: v for v in found if v.window == "all recorded steps"}
    assert whole["sharpness grows as Q (gd)"].outcome == "SUPPORTED"
    assert whole["sharpness grows as Q (sam)"].outcome == "REFUTED"
    assert whole["sharpness grows as Q (sam)"].effect == pytest.approx(-0.4, abs=0.1)
    assert any(v.window == "interpolating steps" for v in found)


@pytest.mark.parametrize(("factor", "outcome"), [(1.05, "SUPPORTED"), (2.0, "REFUTED")])
def test_edge(tmp_path, factor, outcome):
    study = generate("G1", np.random.default_rng(7), T=40)
    study.lam *= (factor * 2 / study.lr / study.lam.max(axis=1))[:, None]
    study.lam *= np.linspace(0.99, 1.01, 12)[:, None]
    found = verify(write(tmp_path, study), ["edge"])[0]
    assert found.effect == pytest.approx(np.log(factor), abs=0.001)
    assert found.outcome == outcome


def test_mse(runs):
    verdicts = verify(runs, ["c6_mse"])
    assert [verdict.runs for verdict in verdicts] == [12, 12]
    mse = [run for run in runs if run.spec["loss"]["name"] == "mse"]
    kept = [np.log(final(run, "ece") / run.metric("ece").max() / 0.2) for run in mse]
    assert verdicts[1].effect == pytest.approx(np.mean(kept))
    assert verdicts[1].pvalue == pytest.approx(stats.ttest_1samp(kept, 0).pvalue)


def test_steep_directions(tmp_path, runs):
    folder = tmp_path
    low = generate("G1", np.random.default_rng(4), T=60)
    low.ece *= 0.2
    write(folder, low, "muon")
    write(folder, generate("G1", np.random.default_rng(5), T=60), "sam")
    found = verify(Runs.open(folder), ["c2_steep_directions"])
    assert found[0].outcome == "SUPPORTED"
    assert found[0].effect == pytest.approx(np.log(5), abs=0.6)
    assert "no runs of bulk_sgd" in found[1].reason


def test_calmo_is_paired_with_its_twin(tmp_path):
    plain = generate("G1", np.random.default_rng(6), T=40)
    better = generate("G1", np.random.default_rng(6), T=40)
    better.ece -= 0.02 * better.ece.min()
    better.ece[:, -1] = plain.ece[:, -1] - 0.02
    write(tmp_path, plain, "gd")
    write(tmp_path, better, "gd", loss={"name": "calmo", "lambda_r": 0.5, "lambda_s": 0.01})
    verdicts = verify(Runs.open(tmp_path), ["c4_calmo"])
    assert verdicts[0].effect == pytest.approx(0.02)
    assert (verdicts[0].outcome, verdicts[0].runs) == ("SUPPORTED", 24)
    assert verdicts[1].outcome == "INCONCLUSIVE"  # no test accuracy in these records


def test_holm_undoes_a_verdict_that_rests_on_p():
    class Many(Claim):
        """Three tests."""

        title = "many"

        def judge(self, runs):
            return [
                self.verdict("a", Outcome.SUPPORTED, "low p", pvalue=p, effect=1.0) for p in (0.001, 0.03, 0.04)
            ] + [self.verdict("b", Outcome.INCONCLUSIVE, "no test")]

    verdicts = judge(Many(), [])
    assert [v.outcome.value for v in verdicts] == ["SUPPORTED", *3 * ["INCONCLUSIVE"]]
    assert [v.pvalue_holm for v in verdicts] == pytest.approx([0.003, 0.06, 0.06, None])
    assert "Holm's p = 0.06" in verdicts[1].reason


def test_a_users_table():
    table = generate("G1", np.random.default_rng(0)).frame()
    own = table.rename(columns={"lr": "stratum", "ece": "x", "lam": "y", "Q": "mediator"}).drop(columns="seed")
    assert [(v.claim, v.outcome.value) for v in verify(own)] == [
        ("coupling", "SUPPORTED"),
        ("mediation", "SUPPORTED"),
        ("exponent", "SUPPORTED"),
    ]
    assert outcomes(verify(table))["ece and lam are coupled"] == "SUPPORTED"
    assert len(verify(own.drop(columns="mediator"))) == 1
    with pytest.raises(SettingError, match="expected columns x and y"):
        verify(own.drop(columns="y"))


def test_verdicts_are_written(tmp_path, runs):
    verdicts = verify(runs, ["c1_train_coupling", "c4_calmo"])
    as_json, as_csv = write_verdicts(verdicts, tmp_path)
    rows = json.loads(as_json.read_text())
    assert [row["outcome"] for row in rows] == [v.outcome.value for v in verdicts]
    assert rows[-1]["pvalue"] is None
    read = pd.read_csv(as_csv, keep_default_na=False, na_values={"effect": "", "pvalue": ""})
    for column in ("claim", "estimand", "effect", "pvalue", "reason"):
        pd.testing.assert_series_equal(read[column], verdict_table(verdicts)[column], check_dtype=False)


def test_an_unknown_claim_answers_with_what_there_is(runs):
    with pytest.raises(SettingError, match="c1_train_coupling"):
        verify(runs, ["c9"])


def test_studies_differ_in_rate_and_seed_only(runs):
    found = studies(runs, None)
    assert [(s.label, len(s.runs)) for s in found] == [("gd", 12), ("sam", 12), ("sgd", 12)]
    assert paper_number("table1", "pearson_mean", split="train", metric="ece", optimizer="sam") == 0.92
    assert paper_number("table1", "pearson_mean", optimizer="lion") is None


def test_contrasts_agree_with_scipy():
    random = np.random.default_rng(0)
    a, b = random.normal(1, 1, 6), random.normal(0, 3, 9)
    one = mean(a)
    expected = stats.ttest_1samp(a, 0.3)
    assert one.pvalue(0.3) == pytest.approx(expected.pvalue)
    assert one.interval() == pytest.approx(tuple(expected.confidence_interval()))
    two = difference({0.1: a}, {0.1: b})
    welch = stats.ttest_ind(a, b, equal_var=False)
    assert two.pvalue() == pytest.approx(welch.pvalue)
    assert two.interval() == pytest.approx(tuple(welch.confidence_interval()))
    # Learning rates count equally, and their differences are no noise.
    split = difference({0.1: [0.0, 0.2], 1.0: [10.0, 10.2]}, {0.1: [1.0, 1.2]})
    assert split.value == pytest.approx(5.1 - 1.1)
    assert split.error == pytest.approx(np.sqrt(2 * 0.02 / 2 / 4 + 0.02 / 2))
    assert difference({0.1: [1.0]}, {0.1: [1.0, 2.0]}) is None
    assert mean([1.0, 2.0]) is None


@pytest.mark.parametrize(
    ("value", "error", "outcome"),
    [(1.0, 0.1, "SUPPORTED"), (0.3, 0.1, "REFUTED"), (-0.5, 0.1, "REFUTED"), (0.5, 0.4, "INCONCLUSIVE")],
)
def test_decide_above(value, error, outcome):
    assert decide_above(Mean(value, error, 20), 0.6)[0] == outcome


@pytest.mark.parametrize(
    ("value", "error", "outcome"), [(0.05, 0.05, "SUPPORTED"), (0.4, 0.05, "REFUTED"), (0.15, 0.1, "INCONCLUSIVE")]
)
def test_decide_equal(value, error, outcome):
    assert decide_equal(Mean(value, error, 20), 0.0, 0.2)[0] == outcome


def bounded(folder, gap=0.0, steps=6):
    """A run of 4 samples and 3 classes, all correct, with margins that grow; confidences off by ``gap`` nats."""
    header = {
        "id": "gd-0",
        "spec": {"optimizer": {"name": "gd", "lr": 0.1}, "loss": {"name": "ce"}, "seed": 0, "steps": steps},
        "meta": {"data": {"classes": 3}},
    }
    with Writer.create(folder / "gd-0", header) as writer:
        for step in range(steps):
            margin = 0.5 + step + np.arange(4.0)
            # Two wrong logits of 0 beside the right one: 1 - p = 2 / (2 + exp(margin)).
            wrong = np.log(2) - np.logaddexp(np.log(2), margin)
            q = np.exp(-margin).mean()
            writer.append("scalars", step, lambda_max=4 * q)
            writer.append(
                "examples_train",
                step,
                margin=margin.astype(np.float32),
                predicted_margin=margin.astype(np.float32),
                correct=np.ones(4, bool),
                log_one_minus_confidence=(wrong + gap).astype(np.float32),
                log_one_minus_p_true=wrong.astype(np.float32),
            )
    return Runs.open(folder), [np.exp(-0.5 - step - np.arange(4.0)).mean() for step in range(steps)]


def test_bounds_are_checked_step_by_step(tmp_path):
    fine, moments = bounded(tmp_path / "a")
    ece, sharpness = verify(fine, ["c3_bounds"])
    assert (ece.outcome, ece.pvalue, ece.runs) == ("SUPPORTED", None, 1)
    assert ece.effect == np.mean([2 * q >= 1 for q in moments])
    assert "no violation in 6 steps" in ece.reason
    assert sharpness.outcome == "INCONCLUSIVE"  # no Jacobians
    # A confidence below that of the margins makes ECE too large for the chain.
    broken = verify(bounded(tmp_path / "b", gap=0.5)[0], ["c3_bounds"])
    assert [v.outcome.value for v in broken] == ["REFUTED"]
    assert "run gd-0, step" in broken[0].reason


def test_muon_is_judged_part_by_part(tmp_path):
    """Margins of muon 3 larger than those of gd at both rates; a perturbation takes 2 of about 4 logits away."""
    random = np.random.default_rng(0)
    for optimizer in ("gd", "muon"):
        for lr in (0.1, 1.0):
            for seed in range(3):
                run_id = f"{optimizer}-{lr}-{seed}"
                spec = {"optimizer": {"name": optimizer, "lr": lr}, "loss": {"name": "ce"}, "seed": seed, "steps": 5}
                header = {"id": run_id, "spec": spec, "meta": {"data": {"classes": 3}}}
                with Writer.create(tmp_path / run_id, header) as writer:
                    margin = np.full(4, 1.0 + 3.0 * (optimizer == "muon")) + 0.1 * random.normal()
                    for step in range(5):
                        correct, unsure = np.ones(4, bool), np.full(4, np.log(0.001), np.float32)
                        columns = {"margin": margin, "correct": correct, "log_one_minus_confidence": unsure}
                        writer.append("examples_train", step, **columns)
                        columns = {"correct": np.arange(4) < 2, "log_one_minus_confidence": unsure}
                        writer.append("examples_test", step, **columns)
                        writer.append("robust_train", step, margin_eps1=margin - 2.5, margin_eps2=margin - 1)
    found = {verdict.statement: verdict for verdict in verify(Runs.open(tmp_path), ["c5_muon"])}
    margins = found["muon has larger train margins than gd"]
    assert margins.outcome == "SUPPORTED"
    assert margins.effect == pytest.approx(3, abs=0.3)
    assert found["train ECE is near zero, below .01 (muon)"].outcome == "SUPPORTED"
    over = found["test predictions are overconfident (muon)"]
    assert over.effect == pytest.approx(0.499)
    lost = found["margins collapse under perturbation (muon)"]
    assert lost.effect == pytest.approx(2.5 / 4 - 0.5, abs=0.03)
    assert lost.outcome == "SUPPORTED"
    assert "no pairs of runs" in found["Muon gains most from CalMO"].reason
