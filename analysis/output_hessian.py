"""The output Hessian of cross-entropy, H_z = diag(p) - p p^T, in float64 from logits: exact where 1 - p rounds to 0.

H_z = sum_{a < b} p_a p_b (e_a - e_b)(e_a - e_b)^T is a graph Laplacian, which is how its diagonal is computed here:
p_k (1 - p_k) with 1 - p_k from the other classes, never by subtraction.
"""

import numpy as np
from numpy.typing import ArrayLike

from analysis.margins import log_odds
from analysis.predictions import Floats, as_logits, log_softmax


def output_hessian(logits: ArrayLike) -> Floats:
    """diag(p) - p p^T of every sample.

    Args:
        logits: [..., K].

    Returns:
        [..., K, K], symmetric positive semidefinite; rows sum to 0.

    Raises:
        InputError: NaN, infinite or empty logits.
    """
    z = as_logits(logits)
    log_p = log_softmax(z)
    hessian = -np.exp(log_p[..., :, None] + log_p[..., None, :])
    diagonal = np.arange(z.shape[-1])
    hessian[..., diagonal, diagonal] = np.exp(log_p - np.logaddexp(0.0, log_odds(z)))
    return hessian


def output_hessian_norm(logits: ArrayLike) -> Floats:
    """lambda_max(H_z) of every sample, by a dense symmetric eigensolver.

    Args:
        logits: [..., K].

    Returns:
        [...], in [0, 1/2]; K/(K-1) phat(1-phat) <= lambda_max(H_z) <= min(phat, 2 phat(1-phat)).

    Raises:
        InputError: NaN, infinite or empty logits.
    """
    return top_eigenvalue(output_hessian(logits))


def mean_output_hessian(logits: ArrayLike) -> Floats:
    """mean_i H_z,i of samples [..., n, K], without forming the samples' matrices.

    It is the block of H_GN that belongs to an output bias, so its top eigenvalue is at most lambda_GN where the
    network has one; and at least mean(1 - |p|^2)/(K - 1), because a Laplacian's trace is spread over K - 1 directions.

    Returns:
        [..., K, K].

    Raises:
        InputError: NaN, infinite or empty logits.
    """
    z = as_logits(logits)
    log_p = log_softmax(z)
    p = np.exp(log_p)
    hessian = -np.swapaxes(p, -1, -2) @ p / z.shape[-2]
    diagonal = np.arange(z.shape[-1])
    hessian[..., diagonal, diagonal] = np.exp(log_p - np.logaddexp(0.0, log_odds(z))).mean(axis=-2)
    return np.asarray(hessian)


def top_eigenvalue(matrices: Floats) -> Floats:
    """lambda_max of symmetric matrices [..., K, K], by a dense solver: [...]."""
    return np.asarray(np.linalg.eigvalsh(matrices)[..., -1])
