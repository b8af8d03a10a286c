"""Recorder: what it writes in a loop of one's own, against values computed from the weights in float64."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from analysis.plugins import SettingError
from analysis.record import RecordError, Run
from runners.probes import PROBES
from runners.recorder import Recorder
from tests.oracles_curvature import dense_gauss_newton


@pytest.fixture
def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    x, y = torch.randn(20, 2, 3), torch.arange(20) % 3
    u, v = torch.randn(10, 2, 3), torch.arange(10) % 3
    return model, (x, y), (u, v)


def test_columns_equal_what_the_definitions_say(problem, tmp_path):
    model, train, test = problem
    with Recorder(tmp_path / "r", model, train, test, probes=["examples", "logits", "norms"]) as recorder:
        recorder.observe(0)
    run = Run.open(tmp_path / "r")
    row = run.frame().iloc[0]
    for split, (x, y) in {"train": train, "test": test}.items():
        z = model(x).detach().double().numpy()
        p = np.exp(z - np.log(np.exp(z).sum(1, keepdims=True)))
        own = p[np.arange(len(y)), y]
        rest = np.where(np.arange(3) == y.numpy()[:, None], -np.inf, z).max(1)
        margin = z[np.arange(len(y)), y] - rest
        stream = f"examples_{split}"
        np.testing.assert_allclose(run.column(stream, "margin")[0], margin, rtol=1e-6)
        np.testing.assert_allclose(np.exp(run.column(stream, "log_one_minus_p_true")[0]), 1 - own, rtol=1e-5)
        np.testing.assert_allclose(np.exp(run.column(stream, "log_one_minus_confidence")[0]), 1 - p.max(1), rtol=1e-5)
        np.testing.assert_array_equal(run.column(stream, "correct")[0], z.argmax(1) == y.numpy())
        np.testing.assert_allclose(run.column(f"logits_{split}", "logits")[0], z, rtol=1e-6)
        assert row[f"loss_{split}"] == pytest.approx(-np.log(own).mean(), rel=1e-12)
        assert row[f"accuracy_{split}"] == (z.argmax(1) == y.numpy()).mean()
        np.testing.assert_array_equal(run.labels(split), y)
    loss = nn.functional.cross_entropy(model(train[0]), train[1])
    flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    assert row["gradient_norm"] == pytest.approx(float(flat.norm()), rel=1e-6)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert row["weight_norm"] == pytest.approx(float(weights.norm()), rel=1e-6)


def test_cadences_and_the_last_step(problem, tmp_path):
    model, train, test = problem
    probes = {"examples": {"every": 4}, "norms": {"at": [1, 2]}, "logits": {"at": "log"}}
    with Recorder(tmp_path / "r", model, train, test, probes=probes) as recorder:
        for step in range(14):
            recorder.observe(step, last=step == 13)
    run = Run.open(tmp_path / "r")
    assert list(run.steps("examples_train")) == [0, 4, 8, 12, 13]
    assert list(run.steps("logits_test")) == [0, 1, 2, 3, 5, 6, 7, 10, 12, 13]
    frame = run.frame()
    measured = frame["gradient_norm"].notna()
    assert list(run.steps("scalars")[measured]) == [1, 2, 13]
    assert frame["loss_train"].notna().all()


def test_modes_gradients_and_random_state_are_left_alone(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    x, y = torch.randn(20, 6), torch.arange(20) % 3
    nn.functional.cross_entropy(model(x), y).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    buffers = [b.clone() for b in model.buffers()]
    state = torch.get_rng_state()
    probes = ["examples", "gn_sharpness", "norms", "hessian_sharpness", "batch_sharpness"]
    with Recorder(tmp_path / "r", model, (x, y), probes={name: {} for name in probes}) as recorder:
        recorder.observe(0)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    for before, p in zip(gradients, model.parameters(), strict=True):
        assert torch.equal(before, p.grad)
    for before, b in zip(buffers, model.buffers(), strict=True):
        assert torch.equal(before, b)
    frame = Run.open(tmp_path / "r").frame()
    assert frame[["lambda_max", "hessian_lambda_max", "batch_sharpness"]].notna().all(axis=None)


def test_a_raised_error_is_in_the_record(problem, tmp_path):
    model, train, test = problem
    with (
        pytest.raises(ZeroDivisionError),
        Recorder(tmp_path / "r", model, train, test, probes=["norms"]) as recorder,
    ):
        recorder.observe(0)
        1 / 0  # noqa: B018
    run = Run.open(tmp_path / "r")
    assert run.status == "failed"
    assert "ZeroDivisionError" in run.meta["error"]
    assert list(run.steps("scalars")) == [0]


def test_mistakes_are_refused_before_anything_is_written(problem, tmp_path):
    model, (x, y), _ = problem
    cases = [
        ({"train": (x, y[:-1])}, "20 inputs and 19 labels"),
        ({"train": (x, y.int())}, "torch.int32"),
        ({"train": (x, y + 1)}, "labels reach 3"),
        ({"train": (x, y), "loss": "cee"}, "cee"),
        ({"train": (x, y), "probes": ["exampels"]}, "exampels"),
    ]
    for settings, words in cases:
        with pytest.raises(SettingError, match=words):
            Recorder(tmp_path / "r", model, **settings)
        assert not (tmp_path / "r").exists()


def test_an_existing_record_is_refused(problem, tmp_path):
    model, train, test = problem
    with Recorder(tmp_path / "r", model, train, test, probes=["norms"]) as recorder:
        recorder.observe(0)
    with pytest.raises(RecordError, match="exists"):
        Recorder(tmp_path / "r", model, train, test)


def test_sharpness_in_chunks_is_that_of_the_whole(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))
    train = torch.randn(30, 1, 6, 6), torch.arange(30) % 3
    found, sizes = [], []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    for name, chunk in {"whole": None, "chunks": 7}.items():
        sizes.clear()
        with Recorder(tmp_path / name, model, train, probes=["gn_sharpness"], chunk=chunk) as recorder:
            recorder.observe(0)
            recorder.observe(1)
        found.append(Run.open(tmp_path / name).frame()["lambda_max"])
        assert max(sizes) == (chunk or 30)
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_an_audit_is_the_largest_eigenvalue_at_a_random_sample_of_steps(problem, tmp_path):
    model, train, _ = problem
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    probes = {"gn_sharpness": {}, "sharpness_audit": {"every": 3}}
    exact = []
    with Recorder(tmp_path / "r", model, train, probes=probes) as recorder:
        for step in range(21):
            recorder.observe(step, last=step == 20)
            exact.append(
                float(
                    torch.linalg.eigvalsh(dense_gauss_newton(copy.deepcopy(model).double(), train[0].double(), "ce"))[
                        -1
                    ]
                )
            )
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train[0]), train[1]).backward()
            optimizer.step()
    frame = Run.open(tmp_path / "r").frame()
    audited = frame["lambda_max_audit"].notna()
    assert 3 <= audited.sum() <= 14
    assert audited.iloc[-1]
    np.testing.assert_allclose(frame["lambda_max_audit"][audited], np.array(exact)[audited], rtol=1e-5)
    np.testing.assert_allclose(frame["lambda_max"], exact, rtol=2e-4)
    settings = PROBES.build({"name": "sharpness_audit", "every": 50}, "probes")
    steps = [step for step in range(20000) if settings.due(step)]
    assert 300 <= len(steps) <= 500
    assert len(set(np.diff(steps))) > 50
