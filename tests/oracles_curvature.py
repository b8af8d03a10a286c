"""Dense float64 twins of the curvature engine: Jacobians entry by entry, matrices in full."""

from typing import Any

import torch
from torch import Tensor, nn


def dense_jacobians(model: nn.Module, x: Tensor) -> Tensor:
    """d logits / d trained parameters of each sample, [n, K, d], one backward pass per entry."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    samples = []
    for i in range(len(x)):
        logits = model(x[i : i + 1])[0]
        rows = [
            torch.cat(
                [g.flatten() for g in torch.autograd.grad(z, parameters, retain_graph=True, materialize_grads=True)]
            )
            for z in logits
        ]
        samples.append(torch.stack(rows))
    return torch.stack(samples)


def output_hessian(logits: Tensor, loss: str) -> Tensor:
    """H_z of each sample, [n, K, K]: diag(p) - p p^T, or (2/K) I."""
    n, classes = logits.shape
    if loss == "mse":
        return (2 / classes * torch.eye(classes, dtype=logits.dtype)).expand(n, classes, classes)
    p = torch.softmax(logits, dim=1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def dense_gauss_newton(model: nn.Module, x: Tensor, loss: str) -> Tensor:
    """mean_i J_i^T H_i J_i, [d, d]."""
    with torch.no_grad():
        outer = output_hessian(model(x), loss)
    jacobians = dense_jacobians(model, x)
    return torch.einsum("nka,nkl,nlb->ab", jacobians, outer, jacobians) / len(x)


def dense_loss_hessian(model: nn.Module, x: Tensor, y: Tensor, loss: Any) -> tuple[Tensor, Tensor]:
    """Gradient [d] and Hessian [d, d] of the mean loss, one backward pass per row."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(loss(model, x, y), parameters, create_graph=True, materialize_grads=True)
    gradient = torch.cat([s.flatten() for s in slopes])
    rows = [
        torch.cat(
            [g.flatten() for g in torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True)]
        )
        for entry in gradient
    ]
    return gradient.detach(), torch.stack(rows)
