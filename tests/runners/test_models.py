"""Networks: exact sizes, initial weights, and outputs against plain formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from analysis.plugins import SettingError
from runners.models import MODELS
from runners.models.resnet20 import Block

CIFAR = (3, 32, 32)


def build(name: str, shape: tuple[int, ...] = CIFAR, classes: int = 10, **settings: Any) -> nn.Sequential:
    torch.manual_seed(0)
    network = MODELS.build({"name": name, **settings}, "model").build(shape, classes)
    assert isinstance(network, nn.Sequential)
    return network


def size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_the_mlp_is_the_papers() -> None:
    network = build("mlp")
    assert [type(layer) for layer in network] == [
        nn.Flatten,
        *(nn.Linear, nn.Tanh),
        *(nn.Linear, nn.Tanh),
        nn.Linear,
    ]
    assert size(network) == (3072 * 200 + 200) + (200 * 200 + 200) + (200 * 10 + 10) == 656_810
    x = torch.randn(5, *CIFAR)
    h = x.reshape(5, -1)
    for layer in (network[1], network[3]):
        h = torch.tanh(h @ layer.weight.T + layer.bias)
    torch.testing.assert_close(network(x), h @ network[5].weight.T + network[5].bias)


def test_mlp_settings() -> None:
    network = build("mlp", hidden=[7, 5], activation="relu", bias=False, shape=(1, 8, 8), classes=3)
    assert size(network) == 64 * 7 + 7 * 5 + 5 * 3
    assert [type(layer) for layer in network][2] is nn.ReLU
    assert [type(layer) for layer in build("mlp", hidden=[])] == [nn.Flatten, nn.Linear]
    assert build("mlp", shape=(12,), classes=4)(torch.zeros(2, 12)).shape == (2, 4)


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "silu", "softplus", "sigmoid"])
def test_activations_are_torchs(activation: str) -> None:
    network = build("mlp", hidden=[6], activation=activation, shape=(4,), classes=2).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    h = getattr(torch if activation == "tanh" else F, activation)(x @ network[1].weight.T + network[1].bias)
    torch.testing.assert_close(network(x), h @ network[3].weight.T + network[3].bias)


def test_the_cnn_by_hand() -> None:
    network = build("cnn")
    assert size(network) == (3 * 16 * 9 + 16) + (16 * 32 * 9 + 32) + (32 * 8 * 8 * 10 + 10) == 25_578
    x = torch.randn(2, *CIFAR)
    h = x
    for layer in (network[0], network[3]):
        h = F.avg_pool2d(F.relu(F.conv2d(h, layer.weight, layer.bias, padding=1)), 2)
    torch.testing.assert_close(network(x), h.flatten(1) @ network[7].weight.T + network[7].bias)
    assert build("cnn", shape=(1, 9, 11), channels=[4, 4, 4])(torch.zeros(2, 1, 9, 11)).shape == (2, 10)


def option_a(block: Block, x: Tensor) -> Tensor:
    """A residual block with its shortcut written out, pixel by pixel."""
    h = F.relu(block.first_norm(F.conv2d(x, block.first.weight, block.first.bias, block.stride, 1)))
    h = block.second_norm(F.conv2d(h, block.second.weight, block.second.bias, 1, 1))
    _, channels, height, width = h.shape
    front = (channels - x.shape[1]) // 2
    for c in range(x.shape[1]):
        for i in range(height):
            for j in range(width):
                h[:, front + c, i, j] += x[:, c, i * block.stride, j * block.stride]
    return F.relu(h)


def test_resnet20_has_the_published_size_and_depth() -> None:
    network = build("resnet20")
    weights = sum(p.numel() for p in network.parameters() if p.ndim > 1)
    assert size(network) == 269_722  # He et al. give 0.27 M
    assert weights == 432 + 6 * 2304 + (4608 + 5 * 9216) + (18432 + 5 * 36864) + 640
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in network.modules()) == 20
    assert size(build("resnet20", classes=100)) == 269_722 + 90 * 65


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (1, 7, 9)])
def test_resnet20_by_hand(norm: str, shape: tuple[int, ...]) -> None:
    network = build("resnet20", norm=norm, shape=shape, width=4).double()
    for module in network.modules():  # other than at initialisation, where parts of it vanish
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.2)
    x = torch.randn(2, *shape, dtype=torch.float64)
    with torch.no_grad():
        h = F.relu(network[1](F.conv2d(x, network[0].weight, network[0].bias, padding=1)))
        for layer in network[3:12]:
            h = option_a(layer, h)
        expected = h.mean(dim=(2, 3)) @ network[14].weight.T + network[14].bias
        torch.testing.assert_close(network(x), expected)
    side = [math.ceil(length / 4) for length in shape[1:]]
    assert list(h.shape) == [2, 16, *side]


@pytest.mark.parametrize("norm", ["group", "none"])
def test_without_batch_norm_samples_do_not_see_each_other(norm: str) -> None:
    network = build("resnet20", norm=norm, width=4)
    x = torch.randn(4, *CIFAR)
    torch.testing.assert_close(network(x)[:1], network(x[:1]), rtol=1e-4, atol=1e-5)
    alone = torch.func.vmap(torch.func.jacrev(lambda image: network(image[None])[0]))(x[:, :, ::4, ::4])
    assert alone.shape == (4, 10, 3, 8, 8)


def test_initial_weights_have_the_documented_spread() -> None:
    linear = build("mlp")[1]
    bound = 1 / math.sqrt(3072)
    assert 0.99 * bound < linear.weight.abs().max() <= bound
    assert linear.bias.abs().max() <= bound
    for network in (build("resnet20"), build("cnn", channels=[64, 64])):
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                n = module.weight.numel()
                expected = math.sqrt(2 / (9 * module.in_channels))
                assert abs(float(module.weight.detach().std()) / expected - 1) < 5 / math.sqrt(2 * n)
                assert module.bias is None or not module.bias.any()


def test_resnet20_without_norm_starts_as_its_shortcuts() -> None:
    network = build("resnet20", norm="none")
    assert size(network) == 432 + 13_824 + 50_688 + 202_752 + 650 + (7 * 16 + 6 * 32 + 6 * 64)
    h = torch.rand(2, 16, 8, 8)
    assert torch.equal(network[3](h), h)
    loss = F.cross_entropy(network(torch.randn(64, *CIFAR)), torch.arange(64) % 10)
    assert loss < 5  # ln 10 = 2.3 for a flat guess


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20"])
def test_weights_follow_torchs_seed(name: str) -> None:
    first, second = build(name).state_dict(), build(name).state_dict()
    other = MODELS.build({"name": name}, "model").build(CIFAR, 10).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        (
            {"name": "cnn"},
            (1, 3, 8),
            "model.name = 'cnn': it needs images .* at least 4; .* shape \\(1, 3, 8\\)",
        ),
        ({"name": "cnn"}, (64,), "model.name = 'cnn': it needs images"),
        ({"name": "resnet20"}, (64,), "model.name = 'resnet20': it needs images"),
        ({"name": "mlp", "hidden": [0]}, CIFAR, "model.hidden.0 = 0"),
        ({"name": "mlp", "activation": "sin"}, CIFAR, "model.activation = 'sin': .*'tanh'"),
        ({"name": "resnet20", "norm": "layer"}, CIFAR, "model.norm = 'layer'"),
        ({"name": "vgg"}, CIFAR, "accepted: cnn, mlp, resnet20"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        MODELS.build(settings, "model").build(shape, 10)
