"""Batch sharpness: curvature of minibatch losses along their own gradients."""

import torch
from torch import Tensor, nn

from runners.curvature.hessian import Hessian
from runners.losses import Loss


def batch_sharpness(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Loss,
    batch_size: int,
    batches: int,
    generator: torch.Generator,
) -> tuple[float, float]:
    """E over minibatches B of g_B^T H_B g_B / |g_B|^2 (Andreyev & Beneventano 2024, arXiv 2412.20553).

    Args:
        model: the network, in the mode to evaluate in.
        x: inputs [n, ...].
        y: labels [n].
        loss: the training loss, whose gradient and Hessian on a batch are g_B and H_B.
        batch_size: samples of a minibatch, drawn without replacement; n or more takes all.
        batches: minibatches drawn.
        generator: what they are drawn with, on the CPU.

    Returns:
        The mean over batches and its standard error, NaN for one batch. A batch whose gradient is zero counts 0.
    """
    quotients = []
    for _ in range(batches):
        rows = torch.randperm(len(y), generator=generator)[:batch_size].to(x.device)
        matrix = Hessian(model, x[rows], y[rows], loss)
        # Unit length first: the square of a tiny gradient would underflow.
        gradient = matrix.gradient().double()
        length = torch.linalg.vector_norm(gradient)
        if float(length) == 0:
            quotients.append(0.0)
            continue
        direction = (gradient / length).to(x.dtype)
        quotients.append(float(direction @ matrix.rows(direction[None])[0]))
    values = torch.tensor(quotients, dtype=torch.float64)
    error = float(values.std()) / batches**0.5 if batches > 1 else float("nan")
    return float(values.mean()), error
