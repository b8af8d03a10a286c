"""Label smoothing and the focal loss against sums in float64, and finite gradients where p saturates."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.plugins import SettingError
from runners.losses import LOSSES, LogitLoss
from runners.losses.focal import Focal
from runners.losses.label_smoothing import LabelSmoothing
from tests import oracles


def sample(seed: int = 0, n: int = 12, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (n,), generator=generator)


def build(table: dict[str, Any]) -> LogitLoss:
    loss = LOSSES.build(table, "loss")
    assert isinstance(loss, LogitLoss)
    return loss


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.6, 1.0])
def test_label_smoothing_is_cross_entropy_against_its_targets(eps):
    logits, y = sample()
    log_p = np.log(oracles.softmax(logits.numpy()))
    targets = (1 - eps) * np.eye(4)[y] + eps / 4
    expected = -np.mean(np.sum(targets * log_p, axis=1))
    assert build({"name": "label_smoothing", "eps": eps}).of_logits(logits, y).item() == pytest.approx(expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0])
def test_focal_loss_is_its_formula(gamma):
    logits, y = sample()
    p = oracles.softmax(logits.numpy())[np.arange(12), y]
    expected = np.mean(-((1 - p) ** gamma) * np.log(p))
    assert build({"name": "focal", "gamma": gamma}).of_logits(logits, y).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", [Focal(gamma=0.0), LabelSmoothing(eps=0.0)])
def test_without_its_weight_a_loss_is_cross_entropy(loss):
    logits, y = sample()
    expected = torch.nn.functional.cross_entropy(logits, y)
    assert loss.of_logits(logits, y).item() == pytest.approx(expected.item(), rel=1e-13)


@pytest.mark.parametrize("loss", [Focal(gamma=0.5), Focal(), LabelSmoothing()])
def test_first_and_second_derivatives_are_those_of_differences(loss):
    logits, y = sample(n=3)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss.of_logits(z, y), logits)
    assert torch.autograd.gradgradcheck(lambda z: loss.of_logits(z, y), logits)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-300, 300), min_size=3, max_size=3),
    st.sampled_from([0.0, 1e-3, 0.5, 0.99, 1.0, 5.0]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_focal_gradient_is_finite_everywhere(row, gamma, dtype):
    logits = torch.tensor([row], dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(Focal(gamma=gamma).of_logits(logits, torch.tensor([0])), logits)
    assert torch.isfinite(slope).all()
    assert slope.sum().abs() <= 1e-4 * slope.abs().sum().clamp_min(1e-30)


def test_settings_out_of_range_are_refused():
    with pytest.raises(SettingError, match=r"loss\.gamma = -1"):
        build({"name": "focal", "gamma": -1.0})
    with pytest.raises(SettingError, match=r"loss\.eps = 1\.5"):
        build({"name": "label_smoothing", "eps": 1.5})
