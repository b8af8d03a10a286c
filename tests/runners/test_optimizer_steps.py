"""What SAM, gradient descent, BulkSGD and Muon promise about their steps."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr
from torch import Tensor, nn

from runners.losses import Loss
from runners.optimizers import OPTIMIZERS, Objective
from tests import oracles
from tests.runners.optimizer_cases import (
    CE,
    FULL,
    N,
    advance,
    assert_close,
    batch_normalised,
    build,
    closure_on,
    cnn,
    minibatches,
    mlp,
    samples,
    trained_arrays,
)

# --- SAM ------------------------------------------------------------------------------------------------------


def test_sam_restores_the_weights_exactly() -> None:
    x, y = samples(5)
    model = mlp(dtype=torch.float32)
    x = x.float()
    optimizer = build({"name": "sam", "lr": 0.1, "rho": 0.3}, model, x, y)
    seen: list[list[Tensor]] = []

    def closure() -> Tensor:
        seen.append([p.detach().clone() for p in model.parameters()])
        optimizer.zero_grad()
        value = CE(model, x, y) if len(seen) == 1 else 0.0 * CE(model, x, y)
        value.backward()
        return value.detach()

    optimizer.step(closure)
    assert len(seen) == 2
    distance = sum(float(((a - b) ** 2).sum()) for a, b in zip(*seen, strict=True)) ** 0.5
    assert distance == pytest.approx(0.3, rel=1e-5)
    for p, original in zip(model.parameters(), seen[0], strict=True):
        assert torch.equal(p, original)


def test_sam_restores_the_weights_when_the_second_pass_fails() -> None:
    x, y = samples(5)
    model = mlp()
    before = copy.deepcopy(model)
    optimizer = build({"name": "sam", "lr": 0.1}, model, x, y)
    first = closure_on(model, optimizer, x, y, FULL)
    calls = iter([first])

    def closure() -> Tensor:
        for call in calls:
            return call()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    for p, q in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(p, q)


def test_sam_at_a_zero_gradient_stays() -> None:
    x, y = samples(5)
    model = mlp()
    before = copy.deepcopy(model)
    optimizer = build({"name": "sam", "lr": 0.1}, model, x, y)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = 0.0 * CE(model, x, y)
        value.backward()
        return value

    optimizer.step(closure)
    for p, q in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(p, q)


def test_sam_keeps_running_averages_of_the_visited_weights() -> None:
    x, y = samples(5)
    plain, sharp = batch_normalised(), batch_normalised()
    advance(plain, build({"name": "sgd", "lr": 0.1}, plain, x, y), x, y, [FULL])
    advance(sharp, build({"name": "sam", "lr": 0.1, "rho": 1.0}, sharp, x, y), x, y, [FULL])
    for a, b in zip(plain.buffers(), sharp.buffers(), strict=True):
        assert torch.equal(a, b)
    assert sharp[1].track_running_stats


def test_sam_needs_a_closure() -> None:
    x, y = samples(5)
    with pytest.raises(ValueError, match="closure"):
        build({"name": "sam", "lr": 0.1}, mlp(), x, y).step()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), momentum=st.sampled_from([0.0, 0.9]))
def test_sam_tends_to_sgd_linearly_in_rho(seed: int, momentum: float) -> None:
    x, y = samples(5, seed=seed)
    options = {"lr": 0.1, "momentum": momentum}
    plain = trained_arrays({"name": "sgd", **options}, mlp(seed), x, y, minibatches(steps=4))
    still = trained_arrays({"name": "sam", "rho": 0.0, **options}, mlp(seed), x, y, minibatches(steps=4))
    assert_close(still, plain, atol=0)

    def distance(rho: float) -> float:
        near = trained_arrays({"name": "sam", "rho": rho, **options}, mlp(seed), x, y, minibatches(steps=4))
        return float(np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(near, plain, strict=True))))

    assert distance(1e-4) == pytest.approx(10 * distance(1e-5), rel=0.02)


# --- gd, BulkSGD, Muon ----------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), lr=st.floats(1e-3, 1.0))
def test_gd_is_sgd_with_everything_in_the_batch(seed: int, lr: float) -> None:
    x, y = samples(5, seed=seed)
    order = [torch.randperm(N, generator=torch.Generator().manual_seed(seed + i)) for i in range(5)]
    full = trained_arrays({"name": "gd", "lr": lr}, mlp(seed), x, y, [FULL] * 5)
    batched = trained_arrays({"name": "sgd", "lr": lr, "batch_size": N}, mlp(seed), x, y, list(order))
    assert_close(batched, full, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), k=st.sampled_from([1, 3, 5]), double=st.booleans())
def test_bulk_sgd_steps_orthogonally_to_its_eigenvectors(seed: int, k: int, double: bool) -> None:
    dtype = torch.float64 if double else torch.float32
    x, y = samples(5, seed=seed)
    x = x.to(dtype)
    model = mlp(seed, dtype)
    optimizer = build({"name": "bulk_sgd", "lr": 1.0, "k": k}, model, x, y)
    before = np.concatenate([p.ravel() for p in oracles.as_arrays(model)])
    advance(model, optimizer, x, y, [minibatches()[0]])
    step = np.concatenate([p.ravel() for p in oracles.as_arrays(model)]) - before
    basis = torch.cat([optimizer.state[p]["eigenvectors"].flatten(1) for p in model.parameters()], dim=1)
    assert np.linalg.norm(step) > 1e-3
    rounding = torch.finfo(dtype).eps * np.linalg.norm(before)
    assert np.abs(basis.double().numpy() @ step).max() < 10 * rounding


def test_bulk_sgd_keeps_its_eigenvectors_between_refreshes() -> None:
    x, y = samples(5)
    model = mlp()
    optimizer = build({"name": "bulk_sgd", "lr": 0.5, "k": 2, "refresh": 3}, model, x, y)
    seen = []
    for _ in range(4):
        advance(model, optimizer, x, y, [FULL])
        seen.append(optimizer.state[model[0].weight]["eigenvectors"])
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[3])


class Valley(Loss):
    """steepness_1 theta_1^2 / 2 + steepness_2 theta_2^2 / 2 for the two weights of a linear layer."""

    _steepness: list[float] = PrivateAttr(default_factory=lambda: [2.0, 1.0])

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        (theta,) = model.parameters()
        return (torch.tensor(self._steepness, dtype=theta.dtype) * theta**2).sum() / 2


def test_bulk_sgd_sees_one_eigenvector_overtake_another() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    valley = Valley()
    plugin = OPTIMIZERS.build({"name": "bulk_sgd", "lr": 0.1}, "optimizer")
    optimizer = plugin.build(model.parameters(), Objective(model, valley, torch.zeros(1), torch.zeros(1)))
    model.weight.grad = torch.zeros_like(model.weight)
    for steepness, top in (([2.0, 1.0], [1.0, 0.0]), ([2.0, 3.0], [0.0, 1.0]), ([2.0, 1.0], [1.0, 0.0])):
        valley._steepness[:] = steepness
        optimizer.step()
        found = optimizer.state[model.weight]["eigenvectors"].flatten().abs().numpy()
        np.testing.assert_allclose(found, top, atol=1e-12)


def test_bulk_sgd_looks_in_evaluation_mode_and_leaves_the_mode_alone() -> None:
    x, y = samples(5)
    model = batch_normalised()
    model[3].eval()
    plain = batch_normalised()
    advance(plain, build({"name": "sgd", "lr": 0.1}, plain, x, y), x, y, [FULL])
    advance(model, build({"name": "bulk_sgd", "lr": 0.1}, model, x, y), x, y, [FULL])
    assert [m.training for m in model.modules()] == [True, True, True, True, False]
    for a, b in zip(plain.buffers(), model.buffers(), strict=True):
        assert torch.equal(a, b)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(2, 12),
    columns=st.integers(2, 12),
    size=st.floats(-6, 3),
    seed=st.integers(0, 1000),
)
def test_muon_steps_are_nearly_orthogonal(rows: int, columns: int, size: float, seed: int) -> None:
    """Whatever the length of the gradient, for singular values within a factor of ten of each other."""
    rng = np.random.default_rng(seed)
    rank = min(rows, columns)
    left = np.linalg.qr(rng.standard_normal((rows, rank)))[0]
    right = np.linalg.qr(rng.standard_normal((columns, rank)))[0]
    gradient = 10**size * (left * rng.uniform(0.1, 1.0, rank)) @ right.T
    model = nn.Sequential(nn.Linear(columns, rows, bias=False), nn.Linear(rows, 2, bias=False)).double()
    optimizer = build({"name": "muon", "lr": 1.0}, model, torch.zeros(1, columns), torch.zeros(1, dtype=torch.long))
    before = model[0].weight.detach().clone()
    model[0].weight.grad = torch.from_numpy(gradient)
    optimizer.step()
    step = (before - model[0].weight.detach()).numpy() / max(1.0, rows / columns) ** 0.5
    sizes = np.linalg.svd(step, compute_uv=False)
    assert sizes.min() > 0.6
    assert sizes.max() < 1.3
    # The polar factor of the gradient is left @ right.T: the step points the same way.
    assert np.sum(step * (left @ right.T)) > 0.6 * rank


def test_muon_orthogonalises_filters_in_any_memory_format() -> None:
    x, y = samples(2, 6, 6)
    plain = trained_arrays({"name": "muon", "lr": 0.05}, cnn(), x, y, minibatches(steps=5))
    model = cnn().to(memory_format=torch.channels_last)
    assert not model[0].weight.is_contiguous()
    built_before = trained_arrays({"name": "muon", "lr": 0.05}, model, x, y, minibatches(steps=5))
    assert_close(built_before, plain, atol=1e-12)

    model = cnn()
    optimizer = build({"name": "muon", "lr": 0.05}, model, x, y)
    model.to(memory_format=torch.channels_last)
    advance(model, optimizer, x, y, minibatches(steps=5))
    assert_close(oracles.as_arrays(model), plain, atol=1e-12)


def test_muon_obeys_a_scheduler() -> None:
    x, y = samples(5)
    model = mlp()
    optimizer = build({"name": "muon", "lr": 0.05}, model, x, y)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step == 0))
    advance(model, optimizer, x, y, [FULL])
    scheduler.step()
    before = copy.deepcopy(model)
    advance(model, optimizer, x, y, [FULL])
    for p, q in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(p, q)
