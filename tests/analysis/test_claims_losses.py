"""C4, C5 and C6 on records whose truth is known: each verdict is reached, at the right step of the right split."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis.record import Runs, Writer
from analysis.verdicts import verify

CALMO = {"name": "calmo", "lambda_r": 0.5, "lambda_s": 0.01}
N, STEPS, BEST = 1000, 10, 6
SPREAD = (-1.0, 0.0, 1.0)
"""Of the seeds, in units of a standard deviation: three values of mean 0 and standard deviation 1."""


def samples(accuracy: float, ece: float, margin: float = 1.0) -> dict[str, np.ndarray]:
    """N samples of one confidence, accuracy + ece: they fill one bin, so ECE is the gap."""
    return {
        "margin": np.full(N, margin, np.float32),
        "correct": np.arange(N) < round(N * accuracy),
        "log_one_minus_confidence": np.full(N, np.log1p(-accuracy - ece), np.float32),
    }


def write_run(
    folder: Path,
    loss: dict,
    seed: int,
    optimizer: str = "sgd",
    ece: float = 0.06,
    accuracy: float = 0.8,
    lr: float = 0.1,
    validation: bool = True,
    status: str = "finished",
) -> None:
    """A run that has these values on test at the step of least validation loss, and others everywhere else."""
    spec = {"optimizer": {"name": optimizer, "lr": lr}, "loss": loss, "seed": seed, "steps": STEPS - 1}
    name = f"{optimizer}-{'-'.join(map(str, loss.values()))}-{lr}-{seed}"
    with Writer.create(folder / name, {"id": name, "spec": spec, "meta": {"data": {"classes": 10}}}) as writer:
        for step in range(STEPS):
            # A decoy by which CalMO looks bad at the last step, and better still at the least test loss.
            decoy = 0.1 if step == STEPS - 1 else 0.0
            worse = decoy if loss["name"] == "calmo" else -decoy / 2
            here = step == BEST
            columns = samples(accuracy if here else 0.6, ece if here else 0.2 + worse)
            losses = {"loss_test": float(step), **({"loss_validation": 1.0 + abs(step - BEST)} if validation else {})}
            writer.append("scalars", step, accuracy_test=columns["correct"].mean(), **losses)
            writer.append("examples_test", step, **columns)
        writer.update(status=status)


def write_pairs(
    folder: Path,
    gain: float = 0.0,
    better: float = 0.0,
    noise: float = 0.001,
    optimizer: str = "sgd",
    seeds: Sequence[int] = (0, 1, 2),
    **options: object,
) -> Runs:
    """CE and CalMO by seed; CalMO lowers ECE by ``gain`` and raises accuracy by ``better``, give or take ``noise``.

    What seeds share with their twins is far larger than what they do not, so that only pairs can tell.
    """
    for place, seed in enumerate(seeds):
        shared, own = 0.02 * (place - 1), noise * SPREAD[place % 3]
        ece, accuracy = 0.08 + shared, 0.78 + shared
        write_run(folder, {"name": "ce"}, seed, optimizer, ece, accuracy, **options)
        write_run(folder, CALMO, seed, optimizer, ece - gain - own, accuracy + better + own, **options)
    return Runs.open(folder)


@pytest.mark.parametrize(
    ("gain", "noise", "outcome"),
    [
        (0.02, 0.002, "SUPPORTED"),
        (-0.02, 0.002, "REFUTED"),
        (0.001, 0.001, "REFUTED"),  # the interval leaves out half a point
        (0.006, 0.01, "INCONCLUSIVE"),
    ],
)
def test_c4_calibration(tmp_path, gain, noise, outcome):
    found = verify(write_pairs(tmp_path, gain=gain, noise=noise), ["c4_calmo"])[0]
    assert found.statement == "CalMO lowers test ECE (sgd)"
    assert found.effect == pytest.approx(gain, abs=1e-6)
    assert found.pvalue == pytest.approx(stats.ttest_1samp([gain + noise * s for s in SPREAD], 0).pvalue, rel=1e-3)
    assert found.outcome == outcome
    assert found.window == "step of least validation loss"
    assert found.paper == pytest.approx(0.081 - 0.056)


@pytest.mark.parametrize(
    ("better", "noise", "outcome"),
    [
        (0.01, 0.001, "SUPPORTED"),
        (-0.004, 0.001, "SUPPORTED"),  # lower, and not by a point
        (-0.03, 0.002, "REFUTED"),
        (-0.01, 0.02, "INCONCLUSIVE"),
        (0.0, 0.03, "INCONCLUSIVE"),
    ],
)
def test_c4_accuracy_is_not_inferior_by_the_declared_point(tmp_path, better, noise, outcome):
    found = verify(write_pairs(tmp_path, better=better, noise=noise), ["c4_calmo"])[1]
    assert found.statement == "CalMO does not lower test accuracy (sgd)"
    assert found.effect == pytest.approx(better + 0.01, abs=1e-9)
    assert found.outcome == outcome


def test_c4_without_validation_reads_the_last_step_and_says_so(tmp_path):
    found = verify(write_pairs(tmp_path, gain=0.02, validation=False), ["c4_calmo"])[0]
    assert found.window == "last step, no validation loss"
    assert found.effect == pytest.approx(-0.15, abs=1e-6)  # the decoy


def test_c4_leaves_out_what_has_no_twin_and_what_ended_badly(tmp_path):
    write_pairs(tmp_path, gain=0.02, seeds=(0, 1, 2))
    write_run(tmp_path, CALMO, seed=7, ece=0.9 - 0.8)
    write_run(tmp_path, CALMO, seed=0, ece=0.1, lr=0.2)
    write_run(tmp_path, {"name": "ce"}, seed=8, ece=0.19)
    write_run(tmp_path, CALMO, seed=8, ece=0.01, status="diverged")
    write_run(tmp_path, {**CALMO, "lambda_r": 0.0}, seed=0, ece=0.19)
    found = verify(Runs.open(tmp_path), ["c4_calmo"])
    assert found[0].effect == pytest.approx(0.02, abs=1e-6)
    assert found[0].runs == 6


def test_c4_wants_three_pairs(tmp_path):
    found = verify(write_pairs(tmp_path, gain=0.02, seeds=(0, 1)), ["c4_calmo"])
    assert {v.outcome.value for v in found} == {"INCONCLUSIVE"}
    assert "2 pairs: expected 3 or more" in found[0].reason
    assert "margintail reproduce table2" in found[0].reason


@pytest.mark.parametrize(
    ("muon", "sgd", "noise", "outcome"),
    [(0.04, 0.01, 0.002, "SUPPORTED"), (0.01, 0.04, 0.002, "REFUTED"), (0.03, 0.02, 0.02, "INCONCLUSIVE")],
)
def test_c5_gains_most(tmp_path, muon, sgd, noise, outcome):
    write_pairs(tmp_path, gain=sgd, noise=noise)
    runs = write_pairs(tmp_path, gain=muon, noise=noise, optimizer="muon")
    found = {verdict.statement: verdict for verdict in verify(runs, ["c5_muon"])}
    verdict = found["CalMO lowers test ECE more for muon than for sgd"]
    one, other = ([gain + noise * s for s in SPREAD] for gain in (muon, sgd))
    welch = stats.ttest_ind(one, other, equal_var=False)
    assert verdict.effect == pytest.approx(muon - sgd, abs=1e-6)
    assert verdict.pvalue == pytest.approx(welch.pvalue, rel=1e-3)
    assert verdict.outcome == outcome
    assert (verdict.runs, verdict.window) == (12, "step of least validation loss")


def write_train(
    folder: Path,
    optimizer: str,
    margin: float,
    ece: float = 0.0,
    over: float = 0.0,
    kept: float = 1.0,
    noise: float = 0.0,
    cadence: tuple[int, int] = (1, 1),
    steps: int = STEPS,
) -> None:
    """Three seeds with mean train margin and ECE, test overconfidence, and the share of margins that an attack leaves.

    Margins grow with the step, so that an attack at one step does not look like one at another. ``cadence`` is that of
    the samples and of the attacks.
    """
    for seed, own in enumerate(SPREAD):
        name = f"{optimizer}-{seed}"
        spec = {"optimizer": {"name": optimizer, "lr": 0.1}, "loss": {"name": "ce"}, "seed": seed, "steps": steps - 1}
        with Writer.create(folder / name, {"id": name, "spec": spec, "meta": {"data": {"classes": 10}}}) as writer:
            for step in range(steps):
                here = (margin + noise * own) * (step + 1) / steps
                if step % cadence[0] == 0:
                    writer.append("examples_train", step, **samples(0.9, ece + noise * (own + 1) / 100, here))
                    writer.append("examples_test", step, **samples(0.7, over + noise * own / 100))
                if step % cadence[1] == 0:
                    left = np.full(N, kept * here + noise * own / 10, np.float32)
                    writer.append("robust_train", step, margin_linf_upper=left, margin_l2_upper=left + 0.3)


PARTS = {
    "margins": "muon has larger train margins than sgd",
    "near zero": "train ECE is near zero, below .01 (muon)",
    "overconfident": "test predictions are overconfident (muon)",
    "collapse": "margins collapse under perturbation (muon)",
}


@pytest.mark.parametrize(
    ("truth", "noise", "expected"),
    [
        (
            {"margin": 5.0, "ece": 0.001, "over": 0.1, "kept": 0.2},
            0.1,
            dict.fromkeys(PARTS, "SUPPORTED"),
        ),
        (
            {"margin": 2.0, "ece": 0.05, "over": 0.0, "kept": 0.9},
            0.1,
            dict.fromkeys(PARTS, "REFUTED"),
        ),
        (
            {"margin": 4.0, "ece": 0.0, "over": 0.015, "kept": 0.45},
            2.5,
            dict.fromkeys(["margins", "overconfident", "collapse"], "INCONCLUSIVE"),
        ),
    ],
    ids=["supported", "refuted", "inconclusive"],
)
def test_c5_parts(tmp_path, truth, noise, expected):
    write_train(tmp_path, "muon", noise=noise, **truth)
    write_train(tmp_path, "sgd", margin=3.0, noise=noise)
    found = {verdict.statement: verdict for verdict in verify(Runs.open(tmp_path), ["c5_muon"])}
    assert {part: found[PARTS[part]].outcome.value for part in expected} == expected


@pytest.mark.parametrize(("cadence", "last"), [((1, 7), 98), ((10, 7), 70), ((10, 3), 90), ((10, 50), 50)])
def test_c5_compares_margins_at_steps_that_both_streams_have(tmp_path, cadence, last):
    write_train(tmp_path, "muon", margin=5.0, kept=0.25, cadence=cadence, steps=100)
    found = {verdict.statement: verdict for verdict in verify(Runs.open(tmp_path), ["c5_muon"])}[PARTS["collapse"]]
    # Exact only where numerator and denominator are of the same steps: margins grow a hundredfold.
    assert found.effect == pytest.approx(0.25, abs=1e-6)
    assert last % cadence[0] == last % cadence[1] == 0


def test_c5_says_where_the_streams_never_meet(tmp_path):
    write_train(tmp_path, "muon", margin=5.0, cadence=(1, 7), steps=8)
    for run in Runs.open(tmp_path):
        for segment in (run.path / "robust_train").glob("*.npz"):
            with np.load(segment) as arrays:
                moved = {**arrays, "step": arrays["step"] + 100}
            segment.unlink()
            np.savez(segment.with_name("00000100-00000107.npz"), **moved)
    found = {verdict.statement: verdict for verdict in verify(Runs.open(tmp_path), ["c5_muon"])}[PARTS["collapse"]]
    assert found.outcome == "INCONCLUSIVE"
    assert "robust_train and examples_train have no step in common" in found.reason


@pytest.mark.parametrize(
    ("end", "noise", "outcome"),
    [(0.8, 0.05, "SUPPORTED"), (0.05, 0.2, "REFUTED"), (0.25, 0.6, "INCONCLUSIVE")],
)
@pytest.mark.parametrize("name", ["lambda_max", "ece"])
def test_c6_kept_of_the_peak(tmp_path, name, end, noise, outcome):
    """A series that rises to 1 and ends at a share of it, times e^noise up or down by the seed."""
    for seed, own in enumerate(SPREAD):
        spec = {"optimizer": {"name": "gd", "lr": 0.1}, "loss": {"name": "mse"}, "seed": seed, "steps": 20}
        header = {"id": f"gd-{seed}", "spec": spec, "meta": {"data": {"classes": 10}}}
        with Writer.create(tmp_path / header["id"], header) as writer:
            for step in range(21):
                value = step / 10 if step <= 10 else end * np.exp(noise * own)
                writer.append("scalars", step, **{"lambda_max": 1.0, "ece": 1.0, name: min(value, 1.0)})
    found = {v.statement: v for v in verify(Runs.open(tmp_path), ["c6_mse"])}
    word = {"lambda_max": "sharpness", "ece": "train ECE"}[name]
    verdict = found[f"{word} does not collapse under MSE (gd)"]
    assert verdict.effect == pytest.approx(np.log(end / 0.2), abs=1e-9)
    assert verdict.outcome == outcome
