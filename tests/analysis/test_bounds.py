"""The chains of inequalities on arrays and on records."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from analysis import margins
from analysis.bounds import FLOAT32, ViolationError, interpolation_step, slack, summarize, waterfall
from analysis.chains import (
    Samples,
    ece_chain,
    lambda_chain,
    output_bias_bounds,
    storage_error,
    violations,
)
from analysis.output_hessian import mean_output_hessian, output_hessian, output_hessian_norm
from analysis.plugins import SettingError
from analysis.record import Run, Runs, Writer
from analysis.theory import gauss_newton_top, two_layer


@st.composite
def labelled_logits(draw):
    n, classes = draw(st.integers(1, 8)), draw(st.sampled_from([2, 3, 10]))
    number = st.floats(-300, 300, allow_subnormal=False)
    logits = draw(arrays.arrays(np.float64, (n, classes), elements=number))
    return logits, draw(arrays.arrays(np.int64, n, elements=st.integers(0, classes - 1)))


@settings(max_examples=200, deadline=None)
@given(labelled_logits(), st.integers(1, 30))
def test_no_link_of_the_calibration_chain_fails(case, bins):
    samples = Samples.of_logits(*case)
    assert violations(ece_chain(samples, bins), storage_error(samples), 1e-12).empty


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 10]), st.floats(-1.5, 1.5))
def test_no_link_of_the_sharpness_chain_fails_for_a_network_with_explicit_jacobian(seed, classes, log_scale):
    random = np.random.default_rng(seed)
    logits, jacobians = two_layer(random, 6, 3, 4, classes, 10**log_scale)
    samples = Samples.of_logits(logits, random.integers(classes, size=6))
    norms = np.linalg.svd(jacobians, compute_uv=False)[:, 0]
    top = gauss_newton_top(jacobians, output_hessian(logits))
    terms = lambda_chain(samples, top, norms, output_hessian_norm(logits)) | output_bias_bounds(logits)
    assert violations(terms, storage_error(samples, norms), 1e-12).empty
    # Each half that the terms are made of, by its own definition.
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(terms["lambda_output_trace"], (1 - (p**2).sum(1)).mean() / (classes - 1), atol=1e-14)
    expected = 2 * norms.max() ** 2 * (classes - 1) * np.exp(-samples.margin).mean()
    np.testing.assert_allclose(terms["bound_lambda"], expected, rtol=1e-12)


def test_a_broken_link_is_found_wherever_it_is():
    random = np.random.default_rng(0)
    samples = Samples.of_logits(random.normal(size=(5, 20, 3)), random.integers(3, size=(5, 20)))
    terms = ece_chain(samples)
    for low, high in zip(terms, list(terms)[1:6], strict=False):
        broken = terms | {low: terms[low].copy()}
        broken[low][3] = terms[high][3] * (1 + 1e-8)
        found = violations(broken, storage_error(samples))
        assert (f"{low} <= {high}", 3) in set(zip(found["link"], found["at"], strict=True))


def test_two_classes_make_equalities():
    random = np.random.default_rng(1)
    logits = random.normal(size=(1000, 2)) * 5
    samples = Samples.of_logits(logits, random.integers(2, size=1000))
    terms = ece_chain(samples)
    np.testing.assert_allclose(terms["mean_one_minus_p_true"], terms["sigmoid_moment"], rtol=1e-12)
    uncertainty = np.exp(samples.log_one_minus_confidence)
    np.testing.assert_allclose(output_hessian_norm(logits), 2 * uncertainty * (1 - uncertainty), rtol=1e-12)


@pytest.mark.parametrize("bins", [1, 7, 15, 100])
def test_with_all_correct_the_ece_is_mean_one_minus_p_true_for_any_bins(bins):
    logits = np.random.default_rng(2).normal(size=(500, 10)) * 3
    terms = ece_chain(Samples.of_logits(logits, logits.argmax(axis=1)), bins)
    np.testing.assert_allclose(terms["ece"], terms["mean_one_minus_p_true"], rtol=1e-12)
    assert terms["half_moment"] <= terms["ece"] <= terms["bound_ece"] <= terms["bound_gamma"]


def test_regime_statements_do_not_apply_in_the_overlap_regime():
    logits = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert np.isnan(ece_chain(Samples.of_logits(logits, [1, 1]))["half_moment"])
    # A tie is not strictly correct.
    assert np.isnan(ece_chain(Samples.of_logits(np.zeros((1, 3)), [0]))["half_moment"])


def test_the_output_hessian_keeps_its_digits_where_confidence_rounds_to_one():
    logits = np.array([[60.0, 0.0, -1.0]])
    small = np.exp(-60.0) * (1 + np.exp(-1.0))
    np.testing.assert_allclose(output_hessian(logits)[0, 0, 0], small, rtol=1e-12)
    np.testing.assert_allclose(output_hessian(logits).sum(axis=-1), 0, atol=1e-40)
    assert 1.4 * small < output_hessian_norm(logits)[0] < 2 * small


def test_mean_output_hessian_is_the_mean():
    logits = np.random.default_rng(3).normal(size=(2, 9, 4)) * 4
    np.testing.assert_allclose(mean_output_hessian(logits), output_hessian(logits).mean(axis=1), atol=1e-16)


def test_storage_error_covers_what_float32_does_to_each_term():
    random = np.random.default_rng(4)
    for seed in range(50):
        logits = random.normal(size=(40, 10)) * 10 ** random.uniform(-1, 1.3)
        exact = Samples.of_logits(logits, random.integers(10, size=40))
        kept = stored(exact)
        one, other, allowed = ece_chain(exact), ece_chain(kept), storage_error(kept)
        for name in ("mean_one_minus_p_true", "sigmoid_moment", "bound_ece", "mean_absolute_gap"):
            assert abs(one[name] - other[name]) <= allowed[name] * 1.01 + 1e-15, (seed, name)
            assert allowed[name] <= 1e-5 * one[name] + 1e-15


def stored(samples):
    """As a record's examples keep them."""
    columns = ("margin", "predicted_margin", "log_one_minus_confidence", "log_one_minus_p_true")
    rounded = {name: getattr(samples, name).astype(np.float32).astype(np.float64) for name in columns}
    return Samples(correct=samples.correct, classes=samples.classes, rounding=FLOAT32, **rounded)


def write_run(folder, *, logits_stream=True, steps=8, tamper=1.0, loss="ce"):
    """A network of one layer with an output bias, scaled up along the run until it interpolates."""
    random = np.random.default_rng(5)
    n, classes = 30, 4
    x = random.normal(size=(n, 6))
    labels = (x @ random.normal(size=(6, classes))).argmax(axis=1)
    w = np.linalg.lstsq(x, np.eye(classes)[labels], rcond=None)[0]
    spec = {"optimizer": {"name": "gd", "lr": 0.1}, "loss": {"name": loss}, "seed": 0, "steps": steps}
    header = {"id": f"run-{loss}", "spec": spec, "meta": {"data": {"classes": classes}}}
    inputs = np.hstack([x, np.ones((n, 1))])
    jacobians = np.einsum("kl,ni->nkli", np.eye(classes), inputs).reshape(n, classes, -1)
    with Writer.create(folder / header["id"], header) as writer:
        writer.static("labels_train", labels=labels)
        for step in range(steps):
            # Half way the labels' own direction comes in.
            logits = ((x @ w) * 2**step + (np.eye(classes)[labels] * 3.0**step if step > 3 else 0)).astype(np.float32)
            logits = logits.astype(np.float64)
            hessians = output_hessian(logits) if loss == "ce" else np.broadcast_to(np.eye(4) / 2, (n, 4, 4))
            top = gauss_newton_top(jacobians, hessians) * tamper
            writer.append("scalars", step, lambda_max=top, lambda_max_residual=0.0)
            if logits_stream:
                writer.append("logits_train", step, logits=logits.astype(np.float32))
            writer.append(
                "examples_train",
                step,
                margin=margins.true_margin(logits, labels).astype(np.float32),
                predicted_margin=margins.predicted_margin(logits).astype(np.float32),
                correct=logits.argmax(axis=1) == labels,
                log_one_minus_confidence=margins.log_one_minus_confidence(logits).astype(np.float32),
                log_one_minus_p_true=margins.log_one_minus_p_true(logits, labels).astype(np.float32),
            )
            if step % 2 == 0:
                writer.append(
                    "jacobian",
                    step,
                    norm=np.linalg.norm(jacobians, ord=2, axis=(1, 2)),
                    output_hessian=np.linalg.eigvalsh(hessians)[:, -1],
                )
    return Run.open(folder / header["id"])


@pytest.mark.parametrize("logits_stream", [True, False])
def test_waterfall_of_a_record(tmp_path, logits_stream):
    run = write_run(tmp_path, logits_stream=logits_stream)
    frame = waterfall(run)
    assert frame.attrs["source"] == ("logits" if logits_stream else "examples")
    np.testing.assert_array_equal(frame.index, run.steps())
    np.testing.assert_array_equal(frame["bound_lambda"].notna(), frame.index % 2 == 0)
    np.testing.assert_allclose(frame["ece"], run.metric("ece"), rtol=1e-5)
    np.testing.assert_allclose(frame["bound_ece"], 3 * run.metric("exp_moment"), rtol=1e-5)
    np.testing.assert_array_equal(frame["ece_vacuous"], frame["bound_ece"] >= 1)
    gamma = run.metric("min_margin").to_numpy()
    np.testing.assert_array_equal(frame["interpolating"], gamma > 0)
    assert interpolation_step(frame) == np.flatnonzero(gamma <= 0)[-1] + 1
    assert (slack(frame).stack().dropna() >= 1 - 1e-6).all()
    row = summarize(Runs.open(tmp_path)).iloc[0]
    assert row["interpolating_from"] == interpolation_step(frame)
    assert row["ece <= mean_absolute_gap"] == slack(frame)["ece <= mean_absolute_gap"].median()


def test_a_violation_names_run_step_and_link(tmp_path):
    run = write_run(tmp_path, tamper=1e3)
    with pytest.raises(ViolationError, match=r"run run-ce, step 0: lambda_max <= jacobian_hessian is violated"):
        waterfall(run)


def test_margins_bound_no_sharpness_under_mse(tmp_path):
    frame = waterfall(write_run(tmp_path, loss="mse"))
    assert {"lambda_max", "jacobian_hessian", "norm_hessian"} <= set(frame.columns)
    assert "bound_lambda" not in frame
    assert "lambda_vacuous" not in frame


def test_a_run_without_samples_says_what_to_record(tmp_path):
    with pytest.raises(SettingError, match=r"no stream logits_test or examples_test.*probes.logits"):
        waterfall(write_run(tmp_path), "test")
