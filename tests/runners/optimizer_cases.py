"""Small networks, data and loops that the tests of optimizers share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runners.losses import LOSSES
from runners.optimizers import OPTIMIZERS, Objective
from tests import oracles

N, STEPS = 24, 20
CE = LOSSES.build({"name": "ce"}, "loss")
FULL = slice(None)

BUILDS: list[dict[str, Any]] = [
    {"name": "gd", "lr": 0.3},
    {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    {"name": "adamw", "lr": 0.01},
    {"name": "muon", "lr": 0.02, "weight_decay": 0.1},
    {"name": "muon", "lr": 0.02, "rest": "sgd"},
    {"name": "sam", "lr": 0.1, "rho": 0.1, "momentum": 0.9},
    {"name": "bulk_sgd", "lr": 0.1, "k": 3, "refresh": 3, "tol": 1e-6},
]


def label(table: dict[str, Any]) -> str:
    return "-".join(str(v) for v in table.values())


def mlp(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    return net.to(dtype)


def cnn(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.Tanh(),
        nn.Conv2d(4, 5, 2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(45, 3),
    )
    return net.double()


def samples(*shape: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (N,), generator=generator)


def minibatches(size: int = 8, steps: int = STEPS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randperm(N, generator=generator)[:size] for _ in range(steps)]


def build(table: dict[str, Any], model: nn.Module, x: Tensor, y: Tensor) -> torch.optim.Optimizer:
    return OPTIMIZERS.build(table, "optimizer").build(model.parameters(), Objective(model, CE, x, y))


def closure_on(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, batch: Any
) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        value = CE(model, x[batch], y[batch])
        value.backward()
        return value.detach()

    return closure


def advance(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, batches: list[Any]
) -> list[float]:
    return [float(optimizer.step(closure_on(model, optimizer, x, y, batch))) for batch in batches]


def trained_arrays(table: dict[str, Any], model: nn.Module, x: Tensor, y: Tensor, batches: list[Any]) -> oracles.Arrays:
    advance(model, build(table, model, x, y), x, y, batches)
    return oracles.as_arrays(model)


def assert_close(found: oracles.Arrays, expected: oracles.Arrays, atol: float) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def batch_normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
