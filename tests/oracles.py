"""Slow exact twins of what the suite computes fast: written to be read, float64, one formula after the other.

Parameters are a list of float64 numpy arrays, and a gradient is a function ``gradient(params, batch)`` to
such a list. An optimizer's twin is a rule (theta, g) -> theta for one parameter, which `descend` applies;
none uses torch.optim.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

Arrays = list[np.ndarray]
Gradient = Callable[[Arrays, Any], Arrays]
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]


def as_arrays(model: nn.Module) -> Arrays:
    """Copies of a network's trained parameters."""
    return [p.detach().double().numpy().copy() for p in model.parameters() if p.requires_grad]


def loss_at(model: nn.Module, loss: Any, params: Arrays, x: torch.Tensor, y: torch.Tensor) -> Any:
    """The loss of a network with other parameters put in, and these as tensors that require a gradient."""
    tensors = [torch.from_numpy(p.copy()).requires_grad_() for p in params]
    names = [name for name, p in model.named_parameters() if p.requires_grad]

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        return functional_call(model, dict(zip(names, tensors, strict=True)), (inputs,))

    return loss(forward, x, y), tensors


def gradient_of(model: nn.Module, loss: Any, x: torch.Tensor, y: torch.Tensor) -> Gradient:
    """The gradient of a float64 network's loss on the rows ``batch`` of x and y."""

    def gradient(params: Arrays, batch: Any) -> Arrays:
        value, tensors = loss_at(model, loss, params, x[batch], y[batch])
        return [g.numpy() for g in torch.autograd.grad(value, tensors)]

    return gradient


def dense_hessian(model: nn.Module, loss: Any, params: Arrays, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """Hessian of the mean loss over x, y in all parameters, [d, d], row by row."""
    value, tensors = loss_at(model, loss, params, x, y)
    slope = torch.autograd.grad(value, tensors, create_graph=True)
    flat = torch.cat([g.flatten() for g in slope])
    rows = []
    for entry in flat:
        row = torch.autograd.grad(entry, tensors, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([r.flatten() for r in row]))
    return torch.stack(rows).numpy()


class SGD:
    """v <- momentum v + g, with g <- g + weight_decay theta first; then theta <- theta - lr v.

    With nesterov theta <- theta - lr (g + momentum v).
    """

    def __init__(self, lr: float, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> None:
        self.lr, self.momentum, self.weight_decay, self.nesterov = lr, momentum, weight_decay, nesterov
        self.velocity: Any = 0.0

    def __call__(self, theta: np.ndarray, g: np.ndarray) -> np.ndarray:
        g = g + self.weight_decay * theta
        self.velocity = self.momentum * self.velocity + g
        return theta - self.lr * (g + self.momentum * self.velocity if self.nesterov else self.velocity)


class AdamW:
    """Loshchilov and Hutter 2019, algorithm 2, constant schedule, lr * weight_decay as their lambda."""

    def __init__(
        self,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        self.lr, self.beta1, self.beta2, self.eps, self.weight_decay = lr, beta1, beta2, eps, weight_decay
        self.t = 0
        self.mean: Any = 0.0
        self.square: Any = 0.0

    def __call__(self, theta: np.ndarray, g: np.ndarray) -> np.ndarray:
        self.t += 1
        self.mean = self.beta1 * self.mean + (1 - self.beta1) * g
        self.square = self.beta2 * self.square + (1 - self.beta2) * g**2
        mean = self.mean / (1 - self.beta1**self.t)
        square = self.square / (1 - self.beta2**self.t)
        return theta - self.lr * self.weight_decay * theta - self.lr * mean / (np.sqrt(square) + self.eps)


class Muon:
    """Along the orthogonalised mean of gradients, each flattened to [out, rest].

    mean <- momentum mean + (1 - momentum) g; with nesterov, momentum mean + (1 - momentum) g is
    orthogonalised.
    """

    def __init__(
        self,
        lr: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        scale: Callable[[int, int], float] = lambda rows, columns: max(1.0, rows / columns) ** 0.5,
    ) -> None:
        self.lr, self.momentum, self.nesterov, self.weight_decay = lr, momentum, nesterov, weight_decay
        self.scale = scale
        self.mean: Any = 0.0

    def __call__(self, theta: np.ndarray, g: np.ndarray) -> np.ndarray:
        g = g.reshape(len(g), -1)
        self.mean = self.momentum * self.mean + (1 - self.momentum) * g
        ahead = self.momentum * self.mean + (1 - self.momentum) * g if self.nesterov else self.mean
        step = self.scale(*g.shape) * newton_schulz(ahead)
        return theta - self.lr * self.weight_decay * theta - self.lr * step.reshape(theta.shape)


def to_bfloat16(a: Any) -> np.ndarray:
    """Each number rounded to eight significant bits, half to even; as float64."""
    return torch.as_tensor(a).bfloat16().double().numpy()


def newton_schulz(matrix: np.ndarray, steps: int = 5) -> np.ndarray:
    """Jordan's quintic iteration X <- a X + b (X X^T) X + c (X X^T)^2 X from X = matrix / |matrix|_F.

    Everything is stored in bfloat16: each matrix product is rounded once, after its sum in float64.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = to_bfloat16(matrix.T if is_tall else matrix)
    x = to_bfloat16(x / to_bfloat16(np.sqrt(np.sum(x**2))))
    for _ in range(steps):
        gram = to_bfloat16(x @ x.T)
        polynomial = to_bfloat16(b * gram + c * (gram @ gram))
        x = to_bfloat16(a * x + polynomial @ x)
    return x.T if is_tall else x


def descend(gradient: Gradient, params: Arrays, batches: Sequence[Any], rules: Sequence[Rule]) -> Arrays:
    """The parameters after one step per batch, each parameter by its own rule (theta, g) -> theta."""
    for batch in batches:
        slope = gradient(params, batch)
        params = [rule(p, g) for rule, p, g in zip(rules, params, slope, strict=True)]
    return params


def perturbed(gradient: Gradient, rho: float) -> Gradient:
    """Foret et al. 2021, algorithm 1: the gradient at theta + rho g / |g| in place of g."""

    def gradient_there(params: Arrays, batch: Any) -> Arrays:
        slope = gradient(params, batch)
        length = np.sqrt(sum(np.sum(g**2) for g in slope))
        return gradient([p + rho * g / length for p, g in zip(params, slope, strict=True)], batch)

    return gradient_there


def bulk_descend(
    gradient: Gradient,
    hessian: Callable[[Arrays], np.ndarray],
    params: Arrays,
    batches: Sequence[Any],
    *,
    lr: float,
    k: int,
    refresh: int = 1,
) -> Arrays:
    """theta <- theta - lr (I - V V^T) g, with V from a dense eigendecomposition every ``refresh`` steps."""
    for t, batch in enumerate(batches):
        if t % refresh == 0:
            top = np.linalg.eigh(hessian(params)).eigenvectors[:, -k:]
        slope = np.concatenate([g.ravel() for g in gradient(params, batch)])
        step = slope - top @ (top.T @ slope)
        ends = np.cumsum([p.size for p in params])[:-1]
        params = [p - lr * s.reshape(p.shape) for p, s in zip(params, np.split(step, ends), strict=True)]
    return params


def softmax(logits: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def cross_entropy(logits: np.ndarray, y: np.ndarray) -> float:
    """Mean of -log p_y, sample by sample."""
    return float(np.mean([-np.log(p[label]) for p, label in zip(softmax(logits), y, strict=True)]))


def mmce(logits: np.ndarray, y: np.ndarray, bandwidth: float = 0.4) -> float:
    """Kumar et al. 2018: the double sum over pairs, term by term."""
    p = softmax(logits)
    r = p.max(axis=1)
    c = (p.argmax(axis=1) == y).astype(float)
    total = 0.0
    for i in range(len(y)):
        for j in range(len(y)):
            total += (c[i] - r[i]) * (c[j] - r[j]) * np.exp(-abs(r[i] - r[j]) / bandwidth)
    return float(np.sqrt(total / len(y) ** 2))


def soft_ece(logits: np.ndarray, y: np.ndarray, bins: int, temperature: float, power: int) -> float:
    """Karandikar et al. 2021: soft bin by soft bin."""
    p = softmax(logits)
    r = p.max(axis=1)
    c = (p.argmax(axis=1) == y).astype(float)
    centres = [(b + 0.5) / bins for b in range(bins)]
    u = softmax(np.array([[-((r_i - centre) ** 2) / temperature for centre in centres] for r_i in r]))
    total = 0.0
    for b in range(bins):
        size = sum(u[:, b])
        accuracy = sum(u[:, b] * c) / size
        confidence = sum(u[:, b] * r) / size
        total += size / len(y) * abs(accuracy - confidence) ** power
    return float(total ** (1 / power))


def pgd(model: nn.Module, x: np.ndarray, y: np.ndarray, eps: np.ndarray, step: np.ndarray, steps: int) -> np.ndarray:
    """Signed gradient ascent on each sample's cross-entropy by itself, projected on |x' - x|_inf <= eps.

    eps and step have the shape of one input.
    """
    found = []
    for start, label in zip(x, y, strict=True):
        point = start
        for _ in range(steps):
            tensor = torch.from_numpy(point[None]).requires_grad_()
            loss = -torch.log_softmax(model(tensor), dim=1)[0, label]
            (slope,) = torch.autograd.grad(loss, tensor)
            point = np.clip(point + step * np.sign(slope[0].numpy()), start - eps, start + eps)
        found.append(point)
    return np.array(found)


def margin_gradients(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Gradient of z_y - max_{j != y} z_j in the input, sample by sample."""
    found = []
    for point, label in zip(x, y, strict=True):
        tensor = torch.from_numpy(point[None]).requires_grad_()
        z = model(tensor)[0]
        rival = max((j for j in range(len(z)) if j != label), key=lambda j: float(z[j].detach()))
        (slope,) = torch.autograd.grad(z[label] - z[rival], tensor)
        found.append(slope[0].numpy())
    return np.array(found)


def calmo(
    model: nn.Module,
    x: np.ndarray,
    y: np.ndarray,
    *,
    lambda_r: float,
    lambda_s: float,
    eps: float = 8 / 255,
    steps: int = 3,
    step_size: float = 2 / 255,
    pixel_std: np.ndarray | float = 1.0,
) -> float:
    """The paper's section 5, with x standardised by pixel_std and both terms in pixels."""

    def logits(inputs: np.ndarray) -> np.ndarray:
        return model(torch.from_numpy(inputs)).detach().numpy()

    one = np.ones_like(x[0])
    worst = pgd(model, x, y, one * eps / pixel_std, one * step_size / pixel_std, steps)
    p, q = softmax(logits(x)), softmax(logits(worst))
    divergence = np.mean(np.sum(p * np.log(p / q), axis=1))
    slopes = margin_gradients(model, x, y) / pixel_std
    flatness = np.mean([np.sum(slope**2) for slope in slopes])
    return float(cross_entropy(logits(x), y) + lambda_r * divergence + lambda_s * flatness)
