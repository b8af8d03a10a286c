"""Each optimizer against its slow twin, and its resume."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runners.optimizers.bulk_sgd import subset
from tests import oracles
from tests.runners.optimizer_cases import (
    BUILDS,
    CE,
    FULL,
    STEPS,
    N,
    advance,
    assert_close,
    build,
    cnn,
    label,
    minibatches,
    mlp,
    samples,
    trained_arrays,
)

# --- twins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({"name": "gd", "lr": 0.3}, lambda: oracles.SGD(0.3)),
        ({"name": "sgd", "lr": 0.2}, lambda: oracles.SGD(0.2)),
        (
            {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
            lambda: oracles.SGD(0.1, momentum=0.9, weight_decay=0.05),
        ),
        (
            {"name": "sgd", "lr": 0.1, "momentum": 0.8, "nesterov": True},
            lambda: oracles.SGD(0.1, momentum=0.8, nesterov=True),
        ),
        ({"name": "adamw", "lr": 0.01}, lambda: oracles.AdamW(0.01)),
        (
            {"name": "adamw", "lr": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4, "weight_decay": 0.3},
            lambda: oracles.AdamW(0.02, beta1=0.8, beta2=0.95, eps=1e-4, weight_decay=0.3),
        ),
    ],
    ids=lambda value: label(value) if isinstance(value, dict) else "",
)
def test_torch_optimizers_follow_their_twins(table: dict[str, Any], rule: Callable[[], oracles.Rule]) -> None:
    x, y = samples(5)
    batches: list[Any] = [FULL] * STEPS if table["name"] == "gd" else list(minibatches())
    start = oracles.as_arrays(mlp())
    expected = oracles.descend(oracles.gradient_of(mlp(), CE, x, y), start, batches, [rule() for _ in start])
    assert_close(trained_arrays(table, mlp(), x, y, batches), expected, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.05}])
def test_sam_follows_its_twin(options: dict[str, float]) -> None:
    x, y = samples(5)
    start = oracles.as_arrays(mlp())
    expected = oracles.descend(
        oracles.perturbed(oracles.gradient_of(mlp(), CE, x, y), rho=0.2),
        start,
        minibatches(),
        [oracles.SGD(0.1, **options) for _ in start],
    )
    found = trained_arrays({"name": "sam", "lr": 0.1, "rho": 0.2, **options}, mlp(), x, y, minibatches())
    assert_close(found, expected, atol=1e-12)


@pytest.mark.parametrize(("k", "refresh", "hessian_samples"), [(1, 1, None), (3, 1, None), (5, 4, None), (3, 7, 10)])
def test_bulk_sgd_follows_its_twin(k: int, refresh: int, hessian_samples: int | None) -> None:
    x, y = samples(5)
    rows = FULL if hessian_samples is None else subset(N, hessian_samples)
    expected = oracles.bulk_descend(
        oracles.gradient_of(mlp(), CE, x, y),
        lambda params: oracles.dense_hessian(mlp(), CE, params, x[rows], y[rows]),
        oracles.as_arrays(mlp()),
        minibatches(),
        lr=0.2,
        k=k,
        refresh=refresh,
    )
    table = {"name": "bulk_sgd", "lr": 0.2, "k": k, "refresh": refresh, "tol": 1e-12}
    if hessian_samples is not None:
        table["hessian_samples"] = hessian_samples
    assert_close(trained_arrays(table, mlp(), x, y, minibatches()), expected, atol=1e-9)


MUON_LR = 0.05


@pytest.mark.parametrize(
    ("options", "rule", "rest"),
    [
        (
            {"rest": "sgd", "rest_lr": 0.1},
            lambda: oracles.Muon(MUON_LR),
            lambda: oracles.SGD(0.1, momentum=0.95),
        ),
        (
            {"rest": "adamw", "rest_lr": 0.01, "weight_decay": 0.2},
            lambda: oracles.Muon(MUON_LR, weight_decay=0.2),
            lambda: oracles.AdamW(0.01, weight_decay=0.2),
        ),
        (
            {"nesterov": False, "momentum": 0.8, "adjust_lr_fn": "spectral_unclamped", "rest_lr": 0.01},
            lambda: oracles.Muon(MUON_LR, momentum=0.8, nesterov=False, scale=lambda a, b: (a / b) ** 0.5),
            lambda: oracles.AdamW(0.01, weight_decay=0.0),
        ),
        (
            {"adjust_lr_fn": "match_rms_adamw", "rest_lr": 0.01},
            lambda: oracles.Muon(MUON_LR, scale=lambda a, b: 0.2 * max(a, b) ** 0.5),
            lambda: oracles.AdamW(0.01, weight_decay=0.0),
        ),
    ],
    ids=["rest-sgd", "weight-decay", "no-nesterov", "match-rms"],
)
@pytest.mark.parametrize("network", [mlp, cnn])
def test_muon_follows_its_twin(
    network: Callable[[], nn.Module],
    options: dict[str, Any],
    rule: Callable[[], oracles.Rule],
    rest: Callable[[], oracles.Rule],
) -> None:
    """Step by step from the same parameters, because bfloat16 decides how close the twins can be.

    The twin rounds to bfloat16 where torch does, but sums a product's terms in float64, not in float32 in the
    order of the hardware. Now and then that puts an entry on the other side of a rounding, and the iteration
    carries the slip on. So most steps agree to float64 rounding, and the others to a few units of 2^-8.
    """
    x, y = samples(5) if network is mlp else samples(2, 6, 6)
    model = network()
    optimizer = build({"name": "muon", "lr": MUON_LR, **options}, model, x, y)
    gradient = oracles.gradient_of(network(), CE, x, y)
    params = oracles.as_arrays(model)
    last_weight = max(i for i, p in enumerate(params) if p.ndim >= 2)
    is_hidden = [p.ndim >= 2 and i != last_weight for i, p in enumerate(params)]
    rules = [rule() if hidden else rest() for hidden in is_hidden]
    gaps = []
    for batch in minibatches():
        expected = oracles.descend(gradient, params, [batch], rules)
        advance(model, optimizer, x, y, [batch])
        params = oracles.as_arrays(model)
        gaps.append([np.abs(a - b).max() for a, b in zip(params, expected, strict=True)])
    hidden_gaps = np.array(gaps)[:, is_hidden]
    assert np.array(gaps)[:, np.logical_not(is_hidden)].max() < 1e-12
    assert np.mean(hidden_gaps < 1e-12) > 0.8
    assert hidden_gaps.max() < MUON_LR * 8 * 2**-8


# --- resume ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", BUILDS, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stop", [0, 7])
def test_resume_is_bit_for_bit(table: dict[str, Any], dtype: torch.dtype, stop: int) -> None:
    x, y = samples(5)
    x = x.to(dtype)
    batches: list[Any] = [FULL] * 15 if table["name"] == "gd" else list(minibatches(steps=15))
    whole = mlp(dtype=dtype)
    losses = advance(whole, build(table, whole, x, y), x, y, batches)

    first = mlp(dtype=dtype)
    optimizer = build(table, first, x, y)
    before = advance(first, optimizer, x, y, batches[:stop])
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)

    second = mlp(seed=5, dtype=dtype)
    optimizer = build(table, second, x, y)
    second.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert before + advance(second, optimizer, x, y, batches[stop:]) == losses
    for a, b in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)
