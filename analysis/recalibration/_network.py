"""A tiny network of one input and one output with ReLU layers, its gradient, and Adam: numpy in place of torch."""

from collections.abc import Callable

import numpy as np

from analysis.predictions import Floats

Layers = list[tuple[Floats, Floats]]


def initial(hidden: tuple[int, ...], seed: int) -> Layers:
    """Weights [in, out] and biases [out], uniform in +-1/sqrt(in), as torch initialises a linear layer."""
    generator = np.random.default_rng(seed)
    layers = []
    for inputs, outputs in zip((1, *hidden), (*hidden, 1), strict=True):
        bound = inputs**-0.5
        layers.append((generator.uniform(-bound, bound, (inputs, outputs)), generator.uniform(-bound, bound, outputs)))
    return layers


def forward(layers: Layers, x: Floats) -> list[Floats]:
    """What enters each layer, [n, width], and last the output [n, 1], from inputs [n]."""
    entering = [x[:, None]]
    for depth, (weight, bias) in enumerate(layers):
        out = entering[-1] @ weight + bias
        entering.append(np.maximum(out, 0.0) if depth < len(layers) - 1 else out)
    return entering


def backward(layers: Layers, entering: list[Floats], slope: Floats) -> Layers:
    """The gradient in weights and biases, from that in the output, [n]."""
    found: Layers = []
    back = slope[:, None]
    for depth in reversed(range(len(layers))):
        found.append((entering[depth].T @ back, back.sum(axis=0)))
        back = (back @ layers[depth][0].T) * (entering[depth] > 0)
    return found[::-1]


def train(
    layers: Layers, step: Callable[[Layers], tuple[float, Layers]], lr: float, epochs: int, patience: int
) -> Layers:
    """Adam (Kingma and Ba 2015) on the full batch.

    Stops when the loss has not improved on its least value for ``patience`` epochs; gives the weights of least
    loss.

    Args:
        layers: where to start.
        step: the loss and its gradient at given weights.
        lr: learning rate.
        epochs: most epochs.
        patience: in epochs.
    """
    theta = [value for layer in layers for value in layer]
    mean = [np.zeros_like(value) for value in theta]
    square = [np.zeros_like(value) for value in theta]
    best, least, waited = layers, np.inf, 0
    for epoch in range(1, epochs + 1):
        here: Layers = list(zip(theta[::2], theta[1::2], strict=True))
        loss, gradient = step(here)
        if loss < least:
            best, least, waited = here, loss, 0
        else:
            waited += 1
            if waited >= patience:
                break
        slopes = [value for layer in gradient for value in layer]
        mean = [0.9 * m + 0.1 * g for m, g in zip(mean, slopes, strict=True)]
        square = [0.999 * v + 0.001 * g**2 for v, g in zip(square, slopes, strict=True)]
        rate, root = lr / (1 - 0.9**epoch), (1 - 0.999**epoch) ** -0.5
        theta = [value - rate * m / (np.sqrt(v) * root + 1e-8) for value, m, v in zip(theta, mean, square, strict=True)]
    return best
