"""ECE over Gaussian soft bins, differentiable in the confidence. Use it as `analysis.calibration.soft_ece`."""

import numpy as np
from numpy.typing import ArrayLike

from analysis.binning import check_count
from analysis.plugins import SettingError
from analysis.predictions import Floats, as_scores, per_row


def soft_ece(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 15, sigma: float = 0.05, delta: float = 0.0
) -> Floats:
    """SoftECE, the loss of SMART (Guo et al. 2025, arXiv 2506.23492).

    Sample i belongs to bin m with weight w_im, proportional over bins to exp(-(c_i - mu_m)^2 / (2 sigma^2)), with
    centres mu_m = (m + 1/2)/M. With W_m = sum_i w_im and r_m = sum_i w_im (c_i - a_i) / W_m the value is
    sum_m (W_m/n) |r_m|, or with ``delta`` sum_m (W_m/n) sqrt(r_m^2 + delta^2), which is smooth.

    Args:
        confidence: floats in [0, 1], [..., n].
        correct: bools or numbers in [0, 1], [..., n].
        bins: number of centres M.
        sigma: width of the soft bins, > 0.
        delta: rounding of the absolute value, >= 0.

    Returns:
        [...], in [0, 1] for delta 0.
    """
    _check(bins, sigma, delta)
    c, a, shape = as_scores(confidence, correct)
    rows = [soft_ece_slope(*row, bins, sigma, delta)[0] for row in zip(c.astype(np.float64), a, strict=True)]
    return per_row(np.array(rows), shape)


def _check(bins: int, sigma: float, delta: float) -> None:
    check_count("bins", bins)
    if not (sigma > 0 and np.isfinite(sigma)):
        raise SettingError(f"sigma = {sigma!r}; expected a finite number > 0")
    if not (delta >= 0 and np.isfinite(delta)):
        raise SettingError(f"delta = {delta!r}; expected a finite number >= 0")


def soft_ece_slope(c: Floats, a: Floats, bins: int, sigma: float, delta: float) -> tuple[float, Floats]:
    """`soft_ece` of one row and its derivative in each confidence.

    (W/n) sqrt(r^2 + delta^2) = sqrt(S^2 + delta^2 W^2)/n with S_m = sum_i w_im (c_i - a_i), which has no quotient.

    Args:
        c: confidence, float64 [n].
        a: correctness, float64 [n].
        bins, sigma, delta: as in `soft_ece`.

    Returns:
        The value, and its derivative [n].
    """
    n = len(c)
    offset = c[:, None] - (np.arange(bins) + 0.5) / bins
    exponent = offset**2 / (-2 * sigma**2)
    w = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    w /= w.sum(axis=1, keepdims=True)
    gap = c - a
    s, total = gap @ w, w.sum(axis=0)
    size = np.sqrt(s**2 + (delta * total) ** 2)
    # A bin with S = 0 and delta = 0 has no derivative; 0 is one of its subgradients.
    along_s = np.divide(s, size, out=np.zeros(bins), where=size > 0)
    along_w = delta**2 * np.divide(total, size, out=np.zeros(bins), where=size > 0)
    pull = -offset / sigma**2
    weight_slope = w * (pull - (w * pull).sum(axis=1, keepdims=True))
    slope = w @ along_s + gap * (weight_slope @ along_s) + weight_slope @ along_w
    return float(size.sum() / n), np.asarray(slope / n)
