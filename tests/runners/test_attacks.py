"""Attacks on the margin, where the infimum is known; and the probes made of them."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from analysis.bounds import waterfall
from analysis.margins import true_margin
from analysis.record import Run
from analysis.tailfit import _Records, _robust_moments
from runners.attacks import margin_gradient_norm, margin_of, robust_margin_upper
from runners.losses import LOSSES
from runners.observation import Observation
from runners.probes import PROBES
from runners.probes.jacobian import rayleigh_quotient
from runners.recorder import Pair, Recorder


def linear(inputs=6, classes=3):
    torch.manual_seed(0)
    return nn.Linear(inputs, classes).double()


def batch(n=40, inputs=6, classes=3):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(n, inputs, generator=random, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=random)


def linear_infimum(model, x, y, eps, dual, std):
    """Exact for a linear network: against each rival the margin falls by eps times a dual norm."""
    logits = model(x).detach()
    weight = model.weight.detach() / std
    found = torch.full((len(y),), torch.inf, dtype=x.dtype)
    for rival in range(logits.shape[1]):
        difference = weight[y] - weight[rival]
        reach = difference.abs().sum(1) if dual == "linf" else difference.norm(dim=1)
        value = logits[torch.arange(len(y)), y] - logits[:, rival] - eps * reach
        found = torch.where(y == rival, found, torch.minimum(found, value))
    return found


def test_margin_is_that_of_the_analysis():
    x, y = batch()
    logits = linear()(x).detach()
    np.testing.assert_allclose(margin_of(logits, y), true_margin(logits.numpy(), y.numpy()), rtol=1e-12)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("std", [1.0, 0.25])
def test_on_two_classes_of_a_linear_network_the_search_finds_the_infimum(norm, std):
    model, (x, y) = linear(classes=2), batch(classes=2)
    found = robust_margin_upper(model, x, y, norm=norm, eps=0.1, step_size=0.1, steps=3, pixel_std=std)
    torch.testing.assert_close(found, linear_infimum(model, x, y, 0.1, norm, std), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_estimate_lies_between_the_infimum_and_the_clean_margin(norm):
    model, (x, y) = linear(), batch()
    found = robust_margin_upper(model, x, y, norm=norm, eps=0.3, step_size=0.05, steps=3)
    assert (found >= linear_infimum(model, x, y, 0.3, norm, 1.0) - 1e-12).all()
    assert (found < margin_of(model(x), y)).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_more_starts_and_steps_never_raise_the_estimate(norm):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 4)).double()
    x, y = batch(classes=4)

    def search(steps, restarts):
        generator = torch.Generator().manual_seed(3)
        options = {"norm": norm, "eps": 1.0, "step_size": 0.3, "generator": generator}
        return robust_margin_upper(model, x, y, steps=steps, restarts=restarts, **options)

    assert (search(6, 0) <= search(3, 0)).all()
    assert (search(3, 4) <= search(3, 0)).all()
    assert (search(3, 4) < search(3, 0)).any()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_every_point_met_is_in_the_ball(norm):
    model, (x, y) = linear(), batch()
    met = []
    model.register_forward_pre_hook(lambda _, inputs: met.append(inputs[0].detach() - x))
    generator = torch.Generator().manual_seed(0)
    options = {"eps": 0.2, "step_size": 0.3, "steps": 4, "restarts": 3, "generator": generator}
    robust_margin_upper(model, x, y, norm=norm, pixel_std=0.5, **options)
    lengths = torch.stack([0.5 * (d.abs().amax(1) if norm == "linf" else d.norm(dim=1)) for d in met])
    assert len(met) == 4 * 5
    assert lengths.max() <= 0.2 + 1e-12
    assert lengths.max() > 0.19


def test_radius_zero_is_the_clean_margin_and_nothing_is_left_behind():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    x, y = batch()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    clean = margin_of(model.eval()(x), y)
    torch.testing.assert_close(
        robust_margin_upper(model, x, y, norm="linf", eps=0.0, step_size=0.0, steps=0), clean.detach()
    )
    robust_margin_upper(model.train(), x, y, norm="l2", eps=0.1, step_size=0.1, steps=2)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], msg=name)
    assert all(p.grad is None for p in model.parameters())
    assert not x.requires_grad


@pytest.mark.parametrize(("dual", "order"), [("l2", 2), ("linf", 1)])
def test_gradient_norm_of_a_linear_network(dual, order):
    model, (x, y) = linear(classes=2), batch(classes=2)
    weight = model.weight.detach()
    expected = (weight[y] - weight[1 - y]).norm(p=order, dim=1) / 0.25
    torch.testing.assert_close(margin_gradient_norm(model, x, y, dual=dual, pixel_std=0.25), expected)


@dataclass
class Pixels:
    pixel_std: float


def test_the_probe_takes_its_radii_in_pixels():
    model, (x, y) = linear(classes=2), batch(classes=2)
    observation = Observation(0, model, LOSSES.build({"name": "ce"}, "loss"), {"train": Pair(x, y)})
    probe = PROBES.build({"name": "robust", "eps": 0.1, "step_size": 0.1, "eps_l2": 0.1}, "probe")
    for std, told in ((1.0, probe), (0.25, probe.for_data(Pixels(0.25)))):
        found = told.measure(observation, {})["robust_train"]["margin_linf_upper"]
        expected = linear_infimum(model, x, y, 0.1, "linf", std).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_probes_of_a_recorded_network_pass_the_waterfall(tmp_path):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = batch(60)
    probes = {
        "examples": {},
        "logits": {},
        "gn_sharpness": {},
        "jacobian": {"iterations": 30},
        "robust": {"eps": 0.2, "step_size": 0.05, "restarts": 2},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with Recorder(tmp_path / "run", model, train=(x.float(), y), test=(x.float(), y), probes=probes) as recorder:
        for step in range(4):
            recorder.observe(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.float()), y).backward()
            optimizer.step()
    run = Run.open(tmp_path / "run")
    clean = run.column("examples_train", "margin")
    weak = run.column("robust_train", "margin_linf_upper")
    assert (weak <= clean + 1e-5).all()
    assert (run.column("robust_train", "margin_linf_strong_upper") <= weak).all()
    frame = waterfall(run)
    assert (frame["bound_ece_linf_strong"] >= frame["bound_ece_linf"]).all()
    assert (frame["lambda_last_layer"] > 0.2 * frame["lambda_max"]).all()
    assert (frame["lambda_output_bias"] <= frame["lambda_max"] * (1 + 1e-5)).all()
    assert "bound_lambda" not in waterfall(run, "test")
    assert _robust_moments([run], "train") == [f"exp_moment_robust_{name}" for name in ("linf", "l2", "linf_strong")]
    for name in _robust_moments([run], "train"):
        steps, moment = _Records([run], "train", ()).series(0, name)
        column = f"margin_{name.removeprefix('exp_moment_robust_')}_upper"
        np.testing.assert_array_equal(steps, run.steps("robust_train"))
        np.testing.assert_allclose(moment, np.exp(-run.column("robust_train", column).astype(float)).mean(1))


def test_last_layer_quotient_converges_to_the_top_of_its_block():
    random = np.random.default_rng(5)
    p = random.dirichlet(np.ones(3), size=20)
    hessians = np.stack([np.diag(row) - np.outer(row, row) for row in p])
    features = random.normal(size=(20, 4)) + 1
    block = np.mean([np.kron(h, np.outer(a, a)) for h, a in zip(hessians, features, strict=True)], axis=0)
    top = np.linalg.eigvalsh(block)[-1]
    few, many = (rayleigh_quotient(hessians, features, steps) for steps in (2, 300))
    assert few <= many <= top * (1 + 1e-12)
    assert many == pytest.approx(top, rel=1e-6)
