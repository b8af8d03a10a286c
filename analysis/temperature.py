"""The temperature that minimises the NLL."""

import numpy as np
from numpy.typing import ArrayLike

from analysis.predictions import Array, Floats, as_labels, as_logits, per_row, softmax

_REACH = 1e6
_TOLERANCE = 1e-12
_STEPS = 200


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> Floats:
    """The T > 0 that minimises the NLL of softmax(z / T) (Guo et al. 2017, arXiv 1706.04599).

    In beta = 1/T the NLL is convex, with slope mean_i (E_p z - z_y) and curvature mean_i Var_p z. The root of the
    slope is bracketed and the bracket only shrinks: a Newton step where it stays inside and pays off, else the
    bracket's geometric middle. So T can neither diverge nor turn negative, whatever the scale of the logits.

    Where the NLL has no minimum, T ends at a bound: 1e6 times the largest gap of a logit to its row's top if
    flatter is always better (accuracy no better than chance); where the slope is 0 in float64, or 1e-6 times
    that gap, if sharper is (all correct). The search starts at T = 1 and goes downhill, so the NLL never grows.

    Args:
        logits: [..., n, K].
        labels: integers [..., n], or [n] for all.

    Returns:
        T, [...]; each entry found from its own [n, K] alone.
    """
    z = as_logits(logits)
    y = as_labels(labels, z.shape)
    shape = z.shape[:-2]
    z = z.reshape(-1, *z.shape[-2:])
    y = y.reshape(z.shape[:-1])
    below_top = np.ascontiguousarray(z - z.max(axis=-1, keepdims=True))
    found = [_best(gap, label) for gap, label in zip(below_top, y, strict=True)]
    return per_row(np.array(found), shape)


def _best(z: Floats, y: Array) -> float:
    scale = -float(z.min())
    if scale == 0:
        return 1.0
    # In units of the largest gap; T = 1 is then beta = scale.
    z = z / scale
    z_true = z[np.arange(len(z)), y]
    low, beta, high = min(scale, 1 / _REACH), scale, max(scale, _REACH)
    last = np.inf
    for _ in range(_STEPS):
        slope, curvature = _slope(z, z_true, beta)
        low, high = (low, beta) if slope > 0 else (beta, high)
        newton = beta - slope / curvature if curvature > 0 else np.inf
        if slope == 0 or min(high - low, abs(newton - beta)) <= _TOLERANCE * beta:
            break
        # Along the exponential tail of a separable set Newton only creeps: its slope falls by e a step.
        trusted = low < newton < high and abs(slope) < last / 4
        beta, last = (newton if trusted else float(np.sqrt(low) * np.sqrt(high))), abs(slope)
    limits = np.finfo(np.float64)
    return float(np.clip(scale / beta, limits.smallest_subnormal, limits.max))


def _slope(z: Floats, z_true: Floats, beta: float) -> tuple[float, float]:
    p = softmax(beta * z)
    mean = (p * z).sum(axis=-1)
    variance = (p * (z - mean[:, None]) ** 2).sum(axis=-1)
    return float((mean - z_true).mean()), float(variance.mean())
