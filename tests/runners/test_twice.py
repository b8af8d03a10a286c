"""Gradients of gradients: the same numbers as torch's own, and no pass that nobody asked for."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from runners.losses import LOSSES
from runners.losses._twice import TwiceDifferentiated
from runners.models import MODELS

aten = torch.ops.aten

CONVOLUTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "strided": {"stride": 2, "padding": 1},
    "dilated": {"dilation": 2},
    "groups": {"groups": 2},
    "same": {"padding": "same"},
}


def images(n: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 2, 6, 6, generator=generator, dtype=torch.float64)


def network(**convolution: Any) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, **convolution), nn.BatchNorm2d(4), nn.Softplus(), nn.BatchNorm2d(4, affine=False)]
    layers += [nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2, eps=0.1, momentum=None), nn.Tanh(), nn.Flatten()]
    network = nn.Sequential(*layers).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network


def penalised(model: nn.Module, x: Tensor, twice: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Output, input gradient, and the gradient of output and squared input gradient in x and all parameters."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    mode = TwiceDifferentiated()
    if twice:
        with mode:
            z = model(x)
    else:
        z = model(x)
    weights = torch.linspace(-1, 2, z.numel(), dtype=z.dtype).view_as(z)
    with mode.inputs_only():
        (slope,) = torch.autograd.grad((weights * z.square()).sum(), x, create_graph=True)
    value = slope.square().sum() + z.exp().mean()
    return z.detach(), slope.detach(), list(torch.autograd.grad(value, [x, *model.parameters()]))


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_numbers_are_torchs(name: str, training: bool, order: torch.memory_format) -> None:
    x = images().contiguous(memory_format=order)
    theirs = network(**CONVOLUTIONS[name]).train(training).to(memory_format=order)
    ours = copy.deepcopy(theirs)
    expected, found = penalised(theirs, x, twice=False), penalised(ours, x, twice=True)
    for one, other in zip([*expected[:2], *expected[2]], [*found[:2], *found[2]], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value, rtol=0, atol=0, msg=key)


def test_finite_differences_agree_with_both_backwards() -> None:
    def outputs(x: Tensor, weight: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        with TwiceDifferentiated():
            z = torch.conv2d(x, weight, None, 2, 1)
            return nn.functional.batch_norm(z, None, None, gain, shift, training=True)

    torch.manual_seed(0)
    shapes = [(3, 1, 5, 5), (2, 1, 3, 3), (2,), (2,)]
    inputs = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(outputs, inputs, fast_mode=True)


def test_third_derivatives_are_torchs() -> None:
    """Of batch norm in evaluation mode: torch has none in training mode, and neither have we."""
    gradients = []
    for twice in (False, True):
        model, x = network().eval(), images().requires_grad_()
        if twice:
            with TwiceDifferentiated():
                z = model(x)
        else:
            z = model(x)
        (slope,) = torch.autograd.grad(z.pow(3).sum(), x, create_graph=True)
        second = torch.autograd.grad(slope.pow(3).sum(), list(model.parameters()), create_graph=True, allow_unused=True)
        third: Any = sum(part.square().sum() for part in second if part is not None)
        gradients.append(torch.autograd.grad(third, [x, *model.parameters()]))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-8)


def test_third_derivatives_of_batch_norm_in_training_are_refused_rather_than_wrong() -> None:
    model, x = network(), images().requires_grad_()
    with TwiceDifferentiated():
        z = model(x)
    (slope,) = torch.autograd.grad(z.pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.pow(3).sum(), model[0].weight, create_graph=True)
    with pytest.raises(RuntimeError, match="3rd"):
        torch.autograd.grad(second.square().sum(), x)


class Counted(TorchDispatchMode):
    """Counts convolutions forward, and backward to inputs and to weights."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.to_inputs = self.to_weights = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.convolution.default:
            self.forward += 1
        if func is aten.convolution_backward.default:
            mask = args[-1]
            self.to_inputs += mask[0]
            self.to_weights += mask[1]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("settings", "forward", "to_inputs", "to_weights"),
    [
        # Clean; s - 1 more in the search; at the point found. Backward: s in the search. Then CE and the robust term.
        ({"lambda_s": 0.0, "steps": 3}, 4, 3, 0),
        ({"lambda_r": 0.0}, 1, 1, 0),
        ({"steps": 3}, 4, 4, 0),
        ({"steps": 1}, 2, 2, 0),
    ],
)
def test_the_loss_makes_the_least_passes(settings: Any, forward: int, to_inputs: int, to_weights: int) -> None:
    model = MODELS.build({"name": "resnet20", "width": 2}, "model").build((3, 8, 8), 4)
    convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    loss = LOSSES.build({"name": "calmo", **settings}, "loss")
    with Counted() as counted:
        value = loss(model, x, y)
        assert counted.forward == forward * convolutions
        assert counted.to_inputs == to_inputs * convolutions
        assert counted.to_weights == to_weights
        before = copy.copy(counted.__dict__)
        torch.autograd.grad(value, list(model.parameters()))
    flat, robust = loss.lambda_s > 0, loss.lambda_r > 0
    # The last backward: weights once for each term; inputs at all layers but those that see x as data alone.
    assert counted.to_weights == (1 + flat + robust) * convolutions
    assert counted.forward - before["forward"] == flat * convolutions
