"""Operator norms of the per-sample Jacobians of the logits."""

import torch
from torch import Tensor, nn

from runners.curvature.forward import Forward
from runners.curvature.gauss_newton import GaussNewton


@torch.no_grad()
def jacobian_norms(model: nn.Module, x: Tensor, *, forward: Forward | None = None, chunk: int | None = None) -> Tensor:
    """|J_i|, the largest singular value of the K x d Jacobian of sample i's logits in the trained parameters.

    Through the K x K Gram matrix J_i J_i^T. For a multilayer perceptron no Jacobian is formed: the Gram is a sum over
    layers of products of small matrices.

    Args:
        model: the network, in the mode to evaluate in.
        x: inputs [n, ...].
        forward: a pass already made over the same inputs at the same parameters.
        chunk: samples per pass; None takes all at once.

    Returns:
        Norms [n], at least 0.
    """
    matrix = GaussNewton(model, x, "mse", forward=forward, chunk=chunk)
    n, classes = matrix.like.shape
    basis = torch.eye(classes, dtype=matrix.like.dtype, device=matrix.like.device).expand(n, classes, classes)
    grams = matrix.linearization.grams(basis)
    # A Gram squares the singular values, so its rounding is that of their squares: kept in float64.
    return torch.linalg.eigvalsh(grams.double())[:, -1].clamp_min(0).sqrt().to(matrix.like.dtype)
