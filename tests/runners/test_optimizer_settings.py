"""Which parameters an optimizer moves, and which settings it accepts."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from analysis.plugins import SettingError
from runners.optimizers import OPTIMIZERS, Objective
from tests.runners.optimizer_cases import BUILDS, CE, FULL, advance, build, closure_on, label, mlp, samples

# --- which parameters move ------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", BUILDS, ids=label)
def test_frozen_parameters_stay(table: dict[str, Any]) -> None:
    x, y = samples(5)
    model = mlp()
    frozen = [model[2].weight, model[4].bias]
    for p in frozen:
        p.requires_grad_(False)
        p.grad = torch.ones_like(p)  # left over from before the freeze
    before = copy.deepcopy(model)
    optimizer = build(table, model, x, y)
    optimizer.step(closure_on(model, optimizer, x, y, FULL))
    for (name, p), q in zip(model.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(p, q) == (name in {"2.weight", "4.bias"}), name


class TwoHeads(nn.Module):
    """A network with a layer that the loss does not reach, so that its gradients are None."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.unused = nn.Linear(5, 4).double()
        self.body = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("table", BUILDS, ids=label)
def test_parameters_without_gradient_stay(table: dict[str, Any]) -> None:
    x, y = samples(5)
    model = TwoHeads()
    before = copy.deepcopy(model)
    advance(model, build(table, model, x, y), x, y, [FULL] * 3)
    for p, q in zip(model.unused.parameters(), before.unused.parameters(), strict=True):
        assert torch.equal(p, q)
    for p, q in zip(model.body.parameters(), before.body.parameters(), strict=True):
        assert not torch.equal(p, q)


@pytest.mark.parametrize("table", BUILDS, ids=label)
def test_nothing_to_train_is_refused(table: dict[str, Any]) -> None:
    x, y = samples(5)
    model = mlp().requires_grad_(False)
    with pytest.raises(SettingError, match="no parameter requires a gradient"):
        build(table, model, x, y)


@pytest.mark.parametrize("table", BUILDS, ids=label)
def test_step_returns_the_loss_before_it(table: dict[str, Any]) -> None:
    x, y = samples(5)
    model = mlp()
    expected = float(CE(model, x, y).detach())
    assert advance(model, build(table, model, x, y), x, y, [FULL]) == [expected]


# --- settings -------------------------------------------------------------------------------------------------


def test_every_optimizer_is_listed() -> None:
    assert {"gd", "sgd", "adamw", "muon", "sam", "bulk_sgd"} <= set(OPTIMIZERS.names())


@pytest.mark.parametrize("table", BUILDS, ids=label)
def test_resolved_settings_build_the_same_optimizer(table: dict[str, Any]) -> None:
    plugin = OPTIMIZERS.build(table, "optimizer")
    assert OPTIMIZERS.build(plugin.table(), "optimizer") == plugin


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"name": "gd", "lr": 0.1, "batch_size": 50},
            r"optimizer\.batch_size = 50: gd takes the whole training set",
        ),
        (
            {"name": "gd", "lr": 0.1, "momentum": 0.9},
            r"optimizer\.momentum = 0\.9: unknown setting; accepted: lr",
        ),
        ({"name": "gd"}, r"optimizer\.lr: this setting is required"),
        ({"name": "sgd", "lr": -0.1}, r"optimizer\.lr = -0\.1: should be greater than 0"),
        ({"name": "sgd", "lr": float("nan")}, r"optimizer\.lr = nan"),
        ({"name": "sgd", "lr": 0.1, "momentum": 1.0}, r"optimizer\.momentum = 1\.0: should be less than 1"),
        (
            {"name": "sgd", "lr": 0.1, "batch_size": 0},
            r"optimizer\.batch_size = 0: should be greater than or equal to 1",
        ),
        (
            {"name": "sgd", "lr": 0.1, "nesterov": True},
            r"optimizer\.nesterov = True: Nesterov's step needs a momentum",
        ),
        (
            {"name": "sam", "lr": 0.1, "nesterov": True},
            r"optimizer\.nesterov = True: Nesterov's step needs a momentum",
        ),
        ({"name": "sgd", "lr": 0.1, "weight_decay": -1.0}, r"optimizer\.weight_decay = -1\.0"),
        ({"name": "adamw", "lr": 0.1, "beta2": 1.0}, r"optimizer\.beta2 = 1\.0: should be less than 1"),
        ({"name": "adamw", "lr": 0.1, "eps": 0.0}, r"optimizer\.eps = 0\.0: should be greater than 0"),
        (
            {"name": "muon", "lr": 0.1, "rest": "adam"},
            r"optimizer\.rest = 'adam': should be 'adamw' or 'sgd'",
        ),
        ({"name": "muon", "lr": 0.1, "ns_steps": 0}, r"optimizer\.ns_steps = 0"),
        (
            {"name": "muon", "lr": 0.1, "adjust_lr_fn": "none"},
            r"optimizer\.adjust_lr_fn = 'none': should be 'original'",
        ),
        (
            {"name": "sam", "lr": 0.1, "rho": -0.1},
            r"optimizer\.rho = -0\.1: should be greater than or equal to 0",
        ),
        ({"name": "bulk_sgd", "lr": 0.1, "k": 0}, r"optimizer\.k = 0: should be greater than or equal to 1"),
        ({"name": "bulk_sgd", "lr": 0.1, "refresh": 0}, r"optimizer\.refresh = 0"),
        ({"name": "bulk_sgd", "lr": 0.1, "tol": 0.0}, r"optimizer\.tol = 0\.0"),
    ],
    ids=lambda value: label(value) if isinstance(value, dict) else "",
)
def test_wrong_settings_are_named(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        OPTIMIZERS.build(table, "optimizer")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"k": 124}, r"optimizer\.k = 124: expected at most the 123 parameters"),
        (
            {"hessian_samples": 25},
            r"optimizer\.hessian_samples = 25: expected at most the 24 training samples",
        ),
    ],
)
def test_bulk_sgd_settings_that_do_not_fit(table: dict[str, Any], sentence: str) -> None:
    x, y = samples(5)
    with pytest.raises(SettingError, match=sentence):
        build({"name": "bulk_sgd", "lr": 0.1, **table}, mlp(), x, y)


def test_bulk_sgd_wants_all_parameters() -> None:
    x, y = samples(5)
    model = mlp()
    plugin = OPTIMIZERS.build({"name": "bulk_sgd", "lr": 0.1}, "optimizer")
    with pytest.raises(SettingError, match="all trained parameters"):
        plugin.build(model[0].parameters(), Objective(model, CE, x, y))


def test_muon_without_a_hidden_matrix_is_refused() -> None:
    x, y = samples(5)
    with pytest.raises(SettingError, match="no hidden matrix"):
        build({"name": "muon", "lr": 0.1}, nn.Linear(5, 3).double(), x, y)
