"""Losses against float64 oracles, and their gradients against finite differences."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from analysis.calibration import kce, top_label
from analysis.plugins import SettingError
from runners.losses import LOSSES, LogitLoss, Loss
from runners.losses._pgd import ascend
from runners.losses.calmo import true_margin
from runners.losses.mixup import pairs
from tests import oracles

N, CLASSES = 12, 4

LOGIT_LOSSES: list[dict[str, Any]] = [
    {"name": "mmce"},
    {"name": "mmce", "bandwidth": 0.1},
    {"name": "soft_ece"},
    {"name": "soft_ece", "norm": "l1", "bins": 7, "temperature": 0.05},
    {"name": "weighted", "calibration": {"name": "mmce"}, "w": 0.3},
]
INPUT_LOSSES: list[dict[str, Any]] = [
    {"name": "calmo"},
    {"name": "calmo", "lambda_r": 0.0, "lambda_s": 0.2},
    {"name": "calmo", "lambda_r": 0.7, "lambda_s": 0.0},
    {"name": "mixup", "alpha": 1.0},
]


def build(table: dict[str, Any]) -> Loss:
    return LOSSES.build(table, "loss")


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 2, 5, 5, generator=generator, dtype=dtype)
    return x, torch.randint(CLASSES, (N,), generator=generator)


def network(seed: int = 0, batch_norm: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    norm = [nn.BatchNorm2d(3)] if batch_norm else []
    return nn.Sequential(nn.Conv2d(2, 3, 3), *norm, nn.Tanh(), nn.Flatten(), nn.Linear(27, CLASSES)).double()


def random_logits(seed: int, scale: float = 2.0, n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, CLASSES, generator=generator, dtype=torch.float64)
    return logits, torch.randint(CLASSES, (n,), generator=generator)


def of_logits(table: dict[str, Any], logits: Tensor, y: Tensor) -> Tensor:
    loss = build(table)
    assert isinstance(loss, LogitLoss)
    return loss.of_logits(logits, y)


def label(table: dict[str, Any]) -> str:
    return "-".join(str(v) for v in table.values())


def parameter_gradient(loss: Loss, model: nn.Module, x: Tensor, y: Tensor) -> np.ndarray:
    gradients = torch.autograd.grad(loss(model, x, y), list(model.parameters()))
    return np.concatenate([g.numpy().ravel() for g in gradients])


def slope_along(loss: Loss, model: nn.Module, x: Tensor, y: Tensor, direction: np.ndarray, h: float = 1e-5) -> float:
    """Central difference of the loss in the parameters."""
    values = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        vector = nn.utils.parameters_to_vector(moved.parameters()).detach()
        nn.utils.vector_to_parameters(vector + sign * h * torch.from_numpy(direction), moved.parameters())
        values.append(float(loss(moved, x, y).detach()))
    return (values[0] - values[1]) / (2 * h)


# --- losses of logits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_mmce_is_the_double_sum(scale: float) -> None:
    logits, y = random_logits(1, scale)
    for bandwidth in (0.4, 0.1):
        found = float(of_logits({"name": "mmce", "bandwidth": bandwidth}, logits, y))
        assert found == pytest.approx(oracles.mmce(logits.numpy(), y.numpy(), bandwidth), rel=1e-12)


def test_mmce_is_the_recorded_kernel_calibration_error() -> None:
    logits, y = random_logits(6, n=200)
    confidence, correct = top_label(logits.numpy(), y.numpy(), from_logits=True)
    found = float(of_logits({"name": "mmce"}, logits, y))
    assert found == pytest.approx(float(kce(confidence, correct)), rel=1e-10)


@pytest.mark.parametrize(("norm", "power"), [("l1", 1), ("l2", 2)])
@pytest.mark.parametrize(("bins", "temperature"), [(15, 0.01), (5, 0.2), (1, 0.01)])
def test_soft_ece_is_the_sum_over_soft_bins(norm: str, power: int, bins: int, temperature: float) -> None:
    logits, y = random_logits(2)
    table = {"name": "soft_ece", "bins": bins, "temperature": temperature, "norm": norm}
    expected = oracles.soft_ece(logits.numpy(), y.numpy(), bins, temperature, power)
    assert float(of_logits(table, logits, y)) == pytest.approx(expected, rel=1e-10)


def test_cold_soft_ece_is_the_binned_one() -> None:
    logits, y = random_logits(3, n=200)
    p = oracles.softmax(logits.numpy())
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y.numpy()
    binned = 0.0
    for b in range(10):
        inside = (confidence > b / 10) & (confidence <= (b + 1) / 10)
        binned += abs(np.sum(correct[inside]) - np.sum(confidence[inside])) / len(y)
    table = {"name": "soft_ece", "bins": 10, "temperature": 1e-6, "norm": "l1"}
    assert float(of_logits(table, logits, y)) == pytest.approx(binned, abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100.0))
def test_calibration_losses_are_between_0_and_1(seed: int, scale: float) -> None:
    logits, y = random_logits(seed, scale)
    l1 = float(of_logits({"name": "soft_ece", "norm": "l1"}, logits, y))
    l2 = float(of_logits({"name": "soft_ece"}, logits, y))
    assert 0 <= float(of_logits({"name": "mmce"}, logits, y)) <= 1
    assert 0 <= l1 <= 1
    # The mean is at most the root mean square.
    assert l1 <= l2 + 1e-12
    assert l2 <= 1 + 1e-12


@pytest.mark.parametrize("table", LOGIT_LOSSES, ids=label)
def test_logit_losses_pass_gradcheck(table: dict[str, Any]) -> None:
    logits, y = random_logits(4)
    assert torch.autograd.gradcheck(lambda z: of_logits(table, z, y), (logits.requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("table", LOGIT_LOSSES, ids=label)
def test_perfect_and_hopeless_confidence_have_finite_gradients(table: dict[str, Any], dtype: torch.dtype) -> None:
    logits = 1000 * torch.eye(CLASSES, dtype=dtype)
    for y in (torch.arange(CLASSES), torch.arange(CLASSES).flip(0)):
        z = logits.clone().requires_grad_()
        value = of_logits(table, z, y)
        value.backward()
        assert torch.isfinite(value)
        assert z.grad is not None
        assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("w", [0.0, 0.25, 1.0])
def test_weighted_is_the_convex_combination(w: float) -> None:
    logits, y = random_logits(5)
    found = float(of_logits({"name": "weighted", "calibration": {"name": "mmce"}, "w": w}, logits, y))
    ce, mmce = oracles.cross_entropy(logits.numpy(), y.numpy()), oracles.mmce(logits.numpy(), y.numpy())
    assert found == pytest.approx((1 - w) * ce + w * mmce, rel=1e-12)


# --- CalMO --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"lambda_r": 0.5, "lambda_s": 0.01},
        {"lambda_r": 0.0, "lambda_s": 0.3},
        {"lambda_r": 2.0, "lambda_s": 0.0},
        {"lambda_r": 0.0, "lambda_s": 0.0},
        {"lambda_r": 1.0, "lambda_s": 0.1, "eps": 0.3, "steps": 7, "step_size": 0.05},
    ],
)
@pytest.mark.parametrize("units", [False, True])
def test_calmo_is_the_sum_of_its_terms(options: dict[str, Any], units: bool) -> None:
    model, (x, y) = network(), batch()
    loss: Any = build({"name": "calmo", **options})
    pixel_std: Any = 1.0
    if units:
        data = SimpleNamespace(pixel_std=torch.tensor([0.2, 0.3], dtype=torch.float64).reshape(2, 1, 1))
        loss, pixel_std = loss.for_data(data), data.pixel_std.numpy()
    expected = oracles.calmo(model, x.numpy(), y.numpy(), pixel_std=pixel_std, **options)
    assert float(loss(model, x, y).detach()) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("shares", [False, True])
def test_pgd_follows_the_loop(steps: int, shares: bool) -> None:
    model, (x, y) = network(), batch()
    eps = torch.tensor([0.05, 0.1], dtype=torch.float64).reshape(2, 1, 1)
    if shares:
        x.requires_grad_()
    found = ascend(model, x, y, eps=eps, step_size=0.4 * eps, steps=steps, logits=model(x) if shares else None)
    radius = eps.numpy() * np.ones(x.shape[1:])
    expected = oracles.pgd(model, x.detach().numpy(), y.numpy(), radius, 0.4 * radius, steps)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-14)
    assert not found.requires_grad


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), eps=st.floats(1e-3, 1.0), double=st.booleans())
def test_pgd_stays_in_the_ball_and_harms(seed: int, eps: float, double: bool) -> None:
    dtype = torch.float64 if double else torch.float32
    x, y = batch(seed, dtype)
    model = network(seed).to(dtype)
    found = ascend(model, x, y, eps=eps, step_size=eps / 4, steps=3)
    assert float((found - x).abs().max()) <= eps + 8 * torch.finfo(dtype).eps
    if eps < 0.01:
        ce = torch.nn.functional.cross_entropy
        assert float(ce(model(found), y).detach()) > float(ce(model(x), y).detach())


@pytest.mark.parametrize("table", INPUT_LOSSES, ids=label)
def test_gradients_by_finite_differences(table: dict[str, Any]) -> None:
    """In the parameters; for CalMO that differentiates an input gradient once more.

    The search moves in signs, so x_adv is piecewise constant in the parameters, as the loss takes it to be.
    """
    model, (x, y) = network(), batch()
    loss = build({**table, "eps": 0.1, "step_size": 0.03} if table["name"] == "calmo" else table)
    gradient = parameter_gradient(loss, model, x, y)
    rng = np.random.default_rng(0)
    for _ in range(6):
        direction = rng.standard_normal(len(gradient))
        direction /= np.linalg.norm(direction)
        expected = slope_along(loss, model, x, y, direction)
        assert float(gradient @ direction) == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_calmo_without_its_terms_is_one_plain_pass() -> None:
    model, (x, y) = network(), batch()
    plain, off = build({"name": "ce"}), build({"name": "calmo", "lambda_r": 0.0, "lambda_s": 0.0})
    assert np.array_equal(parameter_gradient(off, model, x, y), parameter_gradient(plain, model, x, y))
    assert passes(off, model, x, y) == 1


def passes(loss: Loss, model: nn.Module, x: Tensor, y: Tensor) -> int:
    count = []
    handle = model.register_forward_hook(lambda *_: count.append(1))
    loss(model, x, y)
    handle.remove()
    return len(count)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lambda_r": 0.0}, 1),
        ({"lambda_s": 0.0}, 4),
        ({}, 4),
        ({"steps": 1}, 2),
    ],
)
def test_calmo_shares_the_clean_pass(options: dict[str, Any], expected: int) -> None:
    model, (x, y) = network(), batch()
    assert passes(build({"name": "calmo", **options}), model, x, y) == expected


def test_calmo_leaves_gradients_and_inputs_alone() -> None:
    model, (x, y) = network(), batch()
    kept = x.clone()
    build({"name": "calmo"})(model, x, y)
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(x, kept)
    assert not x.requires_grad


def test_calmo_under_no_grad_has_the_same_value() -> None:
    model, (x, y) = network(), batch()
    loss = build({"name": "calmo"})
    with torch.no_grad():
        value = loss(model, x, y)
    assert not value.requires_grad
    assert float(value) == float(loss(model, x, y).detach())


@pytest.mark.parametrize("training", [True, False])
def test_calmo_moves_running_averages_by_the_clean_pass_only(training: bool) -> None:
    model, (x, y) = network(batch_norm=True).train(training), batch()
    plain = copy.deepcopy(model)
    plain(x)
    build({"name": "calmo", "eps": 1.0, "step_size": 1.0})(model, x, y)
    for a, b in zip(plain.buffers(), model.buffers(), strict=True):
        assert torch.equal(a, b)


def test_calmo_for_data_changes_no_setting() -> None:
    loss: Any = build({"name": "calmo"})
    bound = loss.for_data(SimpleNamespace(pixel_std=torch.tensor([0.5])))
    assert bound.table() == loss.table()
    x, y = batch()
    doubled = build({"name": "calmo", "eps": 16 / 255, "step_size": 4 / 255, "lambda_s": 0.04})
    assert float(bound(network(), x, y).detach()) == pytest.approx(float(doubled(network(), x, y).detach()), rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_true_margin_is_positive_iff_strictly_correct(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-2, 3, (20, CLASSES), generator=generator).double()
    y = torch.randint(CLASSES, (20,), generator=generator)
    for found, z, own in zip(true_margin(logits, y).tolist(), logits.tolist(), y.tolist(), strict=True):
        assert found == z[own] - max(z[j] for j in range(CLASSES) if j != own)


# --- mixup --------------------------------------------------------------------------------------------------


def test_mixup_is_the_mean_over_pairs() -> None:
    model, (x, y) = network(), batch()
    partner, t = pairs(x, y, 0.7)
    total = 0.0
    for i in range(N):
        j, weight = int(partner[i]), float(t[i])
        logits = model((weight * x[i] + (1 - weight) * x[j])[None]).detach().numpy()
        total += weight * oracles.cross_entropy(logits, y[i : i + 1].numpy())
        total += (1 - weight) * oracles.cross_entropy(logits, y[j : j + 1].numpy())
    found = float(build({"name": "mixup", "alpha": 0.7})(model, x, y).detach())
    assert found == pytest.approx(total / N, rel=1e-12)


def test_mixup_is_a_function_of_the_batch_and_draws_from_no_global_generator() -> None:
    model, (x, y) = network(), batch()
    state = torch.get_rng_state()
    loss = build({"name": "mixup"})
    first, second = loss(model, x, y), loss(model, x, y)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    other, _ = pairs(*batch(seed=1), 0.2)
    assert not torch.equal(pairs(x, y, 0.2)[0], other)
    assert not torch.equal(pairs(x, y, 0.2)[1], pairs(x, (y + 1) % CLASSES, 0.2)[1])


def test_mixup_weights_follow_the_beta_distribution() -> None:
    x, y = torch.randn(20_000, 3), torch.zeros(20_000, dtype=torch.long)
    partner, t = pairs(x, y, 0.5)
    assert torch.equal(partner.sort().values, torch.arange(20_000))
    # Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)); five standard errors.
    assert float(t.mean()) == pytest.approx(0.5, abs=5 * (0.125 / 20_000) ** 0.5)
    assert float(t.var()) == pytest.approx(0.125, abs=0.005)


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", LOGIT_LOSSES + INPUT_LOSSES, ids=label)
def test_resolved_settings_build_the_same_loss(table: dict[str, Any]) -> None:
    loss = build(table)
    assert build(loss.table()) == loss
    assert loss.output == "ce"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"name": "calmo", "lambda_r": -0.1},
            r"loss\.lambda_r = -0\.1: should be greater than or equal to 0",
        ),
        ({"name": "calmo", "eps": 0.0}, r"loss\.eps = 0\.0: should be greater than 0"),
        ({"name": "calmo", "steps": 0}, r"loss\.steps = 0: should be greater than or equal to 1"),
        (
            {"name": "calmo", "lamda_r": 1.0},
            r"loss\.lamda_r = 1\.0: unknown setting; accepted: lambda_r, lambda_s",
        ),
        ({"name": "mixup", "alpha": 0.0}, r"loss\.alpha = 0\.0: should be greater than 0"),
        ({"name": "mmce", "bandwidth": 0.0}, r"loss\.bandwidth = 0\.0: should be greater than 0"),
        ({"name": "soft_ece", "norm": "max"}, r"loss\.norm = 'max': should be 'l1' or 'l2'"),
        ({"name": "soft_ece", "bins": 0}, r"loss\.bins = 0"),
        ({"name": "weighted"}, r"loss\.calibration: this setting is required"),
        (
            {"name": "weighted", "calibration": {"name": "mmce"}, "w": 1.5},
            r"loss\.w = 1\.5: should be less than or",
        ),
        ({"name": "weighted", "calibration": "mmce"}, r"calibration = 'mmce': expected a table with a name"),
        ({"name": "weighted", "calibration": {"name": "calmo"}}, r"calmo needs more than logits"),
        ({"name": "weighted", "calibration": {"name": "nope"}}, r"no such entry in losses; accepted: .*mmce"),
        ({"name": "weighted", "calibration": {"name": "mmce", "bandwidth": -1.0}}, r"bandwidth = -1\.0"),
    ],
    ids=lambda value: label(value) if isinstance(value, dict) else "",
)
def test_wrong_settings_are_named(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        build(table)
