"""Calibration errors without bins: the kernel errors (KCE, SKCE) and the smooth ECE. Use `analysis.calibration`."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import dct, idct
from scipy.optimize import brentq

from analysis.binning import check_count, choose
from analysis.plugins import SettingError
from analysis.predictions import Array, Floats, InputError, as_labels, as_scores, per_row, probabilities_of

Estimator = Literal["biased", "unbiased"]
_LEAST_WIDTH = 2e-3
_PAIRS = 2**22


def _laplacian_form(scores: Array, weights: Floats, width: float) -> Floats:
    """sum_{i != j} w_i w_j exp(-|s_i - s_j| / width) of rows [r, n], by prefix sums over the sorted scores.

    For sorted scores exp(-|s_i - s_j|/width) = exp(s_j/width) exp(-s_i/width) for j < i: O(n log n), no grid.
    """
    order = np.argsort(scores, axis=-1, kind="stable")
    # The middle of [0, 1] as origin halves the largest exponent.
    u = (np.take_along_axis(scores, order, axis=-1).astype(np.float64) - 0.5) / width
    w = np.take_along_axis(weights, order, axis=-1)
    rising = w * np.exp(u)
    before = np.cumsum(rising, axis=-1)[:, :-1]
    return np.asarray(2 * ((w * np.exp(-u))[:, 1:] * before).sum(axis=-1))


def _check_width(width: float) -> None:
    if not width >= _LEAST_WIDTH or not np.isfinite(width):
        raise SettingError(f"width = {width!r}; expected a finite number >= {_LEAST_WIDTH}")


def _square(total: Floats, diagonal: Floats, n: int, estimator: Estimator, squared: bool) -> Floats:
    """The V- or U-statistic from its sums off and on the diagonal, and its root if asked for."""
    choose("estimator", estimator, ("biased", "unbiased"))
    if estimator == "unbiased":
        if not squared:
            raise SettingError("estimator = 'unbiased' may be negative and has no root; accepted: squared = True")
        if n < 2:
            raise InputError(f"estimator = 'unbiased' needs two samples; got {n}")
        return np.asarray(total / (n * (n - 1)))
    # The kernel is positive definite: what is below 0 is rounding.
    value = np.maximum(total + diagonal, 0) / n**2
    return value if squared else np.sqrt(value)


def kce(
    confidence: ArrayLike,
    correct: ArrayLike,
    width: float = 0.4,
    *,
    estimator: Estimator = "biased",
    squared: bool = False,
) -> Floats:
    """Kernel calibration error, or MMCE (Kumar, Sarawagi and Jain 2018), exact in O(n log n).

    ( mean_{i,j} (a_i - c_i)(a_j - c_j) exp(-|c_i - c_j| / width) )^{1/2}, i = j included.

    Args:
        confidence: floats in [0, 1], [..., n].
        correct: bools or numbers in [0, 1], [..., n].
        width: scale of the Laplacian kernel, at least 0.002 (below, its exponentials leave float64).
        estimator: "biased" is the V-statistic; "unbiased" leaves out i = j, may be negative, and has no root.
        squared: without the square root.

    Returns:
        [...], in [0, 1] unless unbiased.
    """
    _check_width(width)
    c, a, shape = as_scores(confidence, correct)
    d = a - c
    square = _square(_laplacian_form(c, d, width), (d * d).sum(axis=-1), c.shape[-1], estimator, squared)
    return per_row(square, shape)


def weighted_kce(confidence: ArrayLike, correct: ArrayLike, width: float = 0.4) -> Floats:
    """The weighted MMCE of Kumar, Sarawagi and Jain 2018: correct and wrong samples weigh equally.

    With m correct samples, the root of the kernel form of weights (1 - c_i)/m where correct and -c_i/(n - m) where
    wrong. A side without samples contributes 0. ``correct`` must be bools, or 0 and 1.

    Returns:
        [...], >= 0.
    """
    _check_width(width)
    c, a, shape = as_scores(confidence, correct)
    if not np.isin(a, (0, 1)).all():
        raise InputError("correct holds fractions; weighted_kce expects each sample right or wrong")
    m = a.sum(axis=-1, keepdims=True)
    w = a * (1 - c) / np.maximum(m, 1) - (1 - a) * c / np.maximum(a.shape[-1] - m, 1)
    total = _laplacian_form(c, w, width) + (w * w).sum(axis=-1)
    return per_row(np.sqrt(np.maximum(total, 0)), shape)


def skce(
    values: ArrayLike,
    labels: ArrayLike,
    *,
    from_logits: bool,
    nu: float = 1.0,
    estimator: Estimator = "biased",
) -> Floats:
    """Squared kernel calibration error of the whole probability vector (Widmann, Lindsten and Zachariah 2019).

    mean_{i,j} exp(-|p_i - p_j|_2 / nu) <e_{y_i} - p_i, e_{y_j} - p_j>, all pairs, in O(n^2 K) time.

    Args:
        values: logits or probabilities [..., n, K].
        labels: integers [..., n].
        from_logits: whether ``values`` are logits.
        nu: scale of the kernel, > 0.
        estimator: "biased" has all pairs; "unbiased" leaves out i = j and may be negative.

    Returns:
        [...], in squared probability.
    """
    if not (nu > 0 and np.isfinite(nu)):
        raise SettingError(f"nu = {nu!r}; expected a finite number > 0")
    p = probabilities_of(values, from_logits=from_logits).astype(np.float64)
    y = as_labels(labels, p.shape)
    rows = p.reshape(-1, *p.shape[-2:])
    found = []
    for row, label in zip(rows, y.reshape(len(rows), -1), strict=True):
        residual = -row
        residual[np.arange(len(row)), label] += 1
        total = _vector_form(row, residual, nu)
        diagonal = (residual**2).sum()
        found.append(_square(np.asarray(total - diagonal), diagonal, len(row), estimator, squared=True))
    return per_row(np.array(found), p.shape[:-2])


def _vector_form(p: Floats, residual: Floats, nu: float) -> float:
    """sum_{i,j} exp(-|p_i - p_j|/nu) <r_i, r_j>, some rows at a time so that memory stays bounded."""
    total = 0.0
    for start in range(0, len(p), max(1, _PAIRS // p.size)):
        rows = slice(start, start + max(1, _PAIRS // p.size))
        distance = np.sqrt(((p[rows, None, :] - p[None, :, :]) ** 2).sum(axis=-1))
        total += float((np.exp(-distance / nu) * (residual[rows] @ residual.T)).sum())
    return total


def smooth_ece(confidence: ArrayLike, correct: ArrayLike, bandwidth: float | None = None, cells: int = 2048) -> Floats:
    """Smooth ECE (Blasiok and Nakkiran 2023, arXiv 2309.12236): the residuals, smoothed over confidence.

    smECE_s = integral over [0, 1] of |(1/n) sum_i (a_i - c_i) K_s(t, c_i)| dt, with a Gaussian K_s of standard
    deviation s reflected at 0 and 1; without ``bandwidth``, the fixed point smECE_s = s.

    That kernel is diagonal in the cosines cos(pi k t), with eigenvalues exp(-(pi k s)^2 / 2): so one transform of
    the residuals, shared out between the two nearest of ``cells`` points, serves every s.

    Args:
        confidence: floats in [0, 1], [..., n].
        correct: bools or numbers in [0, 1], [..., n].
        bandwidth: s > 0, in confidence; None for the fixed point.
        cells: points of the grid. A bandwidth below 1/cells is not resolved.

    Returns:
        [...], in [0, 1].
    """
    check_count("cells", cells)
    if bandwidth is not None and not bandwidth > 0:
        raise SettingError(f"bandwidth = {bandwidth!r}; expected a number > 0, or None for the fixed point")
    c, a, shape = as_scores(confidence, correct)
    # Row by row: a transform of many rows at once rounds differently.
    return per_row(np.array([_smooth(*row, bandwidth, cells) for row in zip(c, a, strict=True)]), shape)


def _smooth(c: Array, a: Floats, bandwidth: float | None, cells: int) -> float:
    coefficients = dct(_on_grid(c.astype(np.float64), (a - c) / len(c), cells), type=2)
    frequency = -0.5 * (np.pi * np.arange(cells)) ** 2

    def error(s: float) -> float:
        return float(np.abs(idct(coefficients * np.exp(frequency * s**2), type=2)).sum())

    if bandwidth is not None:
        return error(bandwidth)
    # error falls from at most 1 as s grows, so error(s) - s changes sign once.
    return float(brentq(lambda s: error(s) - s, 0.0, 1.0, xtol=1e-10))


def _on_grid(c: Floats, weights: Floats, cells: int) -> Floats:
    """Masses at the cell midpoints (j + 1/2)/cells, each weight shared linearly by the two nearest ones."""
    position = np.clip(c * cells - 0.5, 0, cells - 1)
    left = np.minimum(position.astype(np.int64), max(cells - 2, 0))
    share = position - left
    masses = np.bincount(left, weights * (1 - share), minlength=cells + 1)
    masses += np.bincount(left + 1, weights * share, minlength=cells + 1)
    return np.asarray(masses[:cells])
