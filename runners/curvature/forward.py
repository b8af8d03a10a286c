"""One forward pass that probes, curvature and the training step share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Forward:
    """A forward pass.

    Attributes:
        logits: [n, K]; with the autograd graph if it was asked for.
        outputs: what each module of a multilayer perceptron gave, in order and detached: references to what the
            pass made anyway. None for other networks and for passes in chunks.
    """

    logits: Tensor
    outputs: tuple[Tensor, ...] | None = None


def run_forward(model: nn.Module, x: Tensor, grad: bool = False, chunk: int | None = None) -> Forward:
    """Evaluate the network on all samples.

    Args:
        model: the network, in the mode to evaluate in.
        x: inputs [n, ...].
        grad: keep the graph.
        chunk: samples per pass; None takes all at once.
    """
    with torch.set_grad_enabled(grad):
        if chunk is not None and chunk < len(x):
            return Forward(torch.cat([model(part) for part in x.split(chunk)]))
        if not perceptron_stages(model):
            return Forward(model(x))
        if model._forward_hooks:
            return _watched(model, x)
        outputs = []
        for module in model.children():
            x = module(x)
            outputs.append(x.detach())
        return Forward(x, tuple(outputs))


def _watched(model: nn.Module, x: Tensor) -> Forward:
    """A pass through a network with hooks of its own, which must run."""
    outputs: list[Tensor] = []
    handles = [
        module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        for module in model.children()
    ]
    try:
        logits = model(x)
    finally:
        for handle in handles:
            handle.remove()
    # A hook that put something else in place of the output leaves no perceptron.
    unchanged = logits is outputs[-1]
    return Forward(logits, tuple(o.detach() for o in outputs) if unchanged else None)


class Stage(NamedTuple):
    """A linear layer and what follows it.

    Attributes:
        position: where the layer stands among the network's modules.
        linear: the layer.
        activation: position of the non-linearity behind it; None for the last layer, or where none follows.
    """

    position: int
    linear: nn.Linear
    activation: int | None


def perceptron_stages(model: nn.Module) -> list[Stage]:
    """The layers of a multilayer perceptron whose every parameter is trained; empty for any other network.

    A perceptron is a plain ``nn.Sequential`` whose layers have no hooks: linear layers, at most one known activation
    behind each, the last layer linear; Flatten in front, Identity and inactive Dropout anywhere.
    """
    if type(model) is not nn.Sequential or _hooked(model, besides_forward=True):
        return []
    stages: list[Stage] = []
    seen: set[int] = set()
    for position, module in enumerate(model.children()):
        if _hooked(module):
            return []
        if type(module) is nn.Linear:
            parameters = [p for p in (module.weight, module.bias) if p is not None]
            if not all(p.requires_grad for p in parameters) or seen.intersection(map(id, parameters)):
                return []
            seen.update(map(id, parameters))
            stages.append(Stage(position, module, None))
        elif type(module) in SLOPES:
            if not stages or stages[-1].activation is not None or getattr(module, "inplace", False):
                return []
            stages[-1] = stages[-1]._replace(activation=position)
        elif type(module) is nn.Flatten:
            if stages or module.start_dim != 1 or module.end_dim != -1:
                return []
        elif type(module) is not nn.Identity and (type(module) is not nn.Dropout or module.training):
            return []
    return stages if stages and stages[-1].activation is None else []


def _hooked(module: nn.Module, besides_forward: bool = False) -> bool:
    return bool(
        (module._forward_hooks and not besides_forward)
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _by_autograd(module: nn.Module, before: Tensor, after: Tensor) -> Tensor:
    with torch.enable_grad():
        point = before.detach().requires_grad_()
        (slope,) = torch.autograd.grad(module(point).sum(), point)
    return slope


# Derivative of an activation from (module, its input, its output), elementwise.
SLOPES: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    nn.Tanh: lambda module, before, after: torch.addcmul(after.new_ones(()), after, after, value=-1),
    nn.ReLU: lambda module, before, after: (after > 0).to(after.dtype),
    nn.Sigmoid: lambda module, before, after: after - after * after,
    nn.GELU: _by_autograd,
    nn.SiLU: _by_autograd,
    nn.Softplus: _by_autograd,
    nn.ELU: _by_autograd,
    nn.LeakyReLU: _by_autograd,
}
