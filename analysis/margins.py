"""Margins, in logits, and what follows from them, in float64 whatever comes in.

Functions of logits take [..., n, K] and labels [..., n] (or [n] for all) and return [..., n], so a trajectory
goes in whole; functions of margins take [..., n] and return [...].
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.predictions import Floats, as_array, as_labels, as_logits, check_finite, logsumexp, per_row


def _split(logits: Floats, classes: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The logit of a class, and all logits with that one replaced by -inf."""
    own = np.take_along_axis(logits, classes[..., None], axis=-1)[..., 0]
    rest = logits.copy()
    np.put_along_axis(rest, classes[..., None], -np.inf, axis=-1)
    return own, rest


def true_margin(logits: ArrayLike, labels: ArrayLike) -> Floats:
    """m = z_y - max_{j != y} z_j, in logits; positive iff strictly correct.

    Raises:
        InputError: NaN, infinite or empty logits, mismatched lengths, a label out of range.
    """
    z = as_logits(logits)
    own, rest = _split(z, as_labels(labels, z.shape))
    return np.asarray(own - rest.max(axis=-1))


def predicted_margin(logits: ArrayLike) -> Floats:
    """mhat = z_(1) - z_(2) >= 0, the gap of the two largest logits; 0 at a tie; needs no label."""
    z = as_logits(logits)
    top_two = np.partition(z, -2, axis=-1)[..., -2:]
    return np.asarray(top_two[..., 1] - top_two[..., 0])


def log_one_minus_p_true(logits: ArrayLike, labels: ArrayLike) -> Floats:
    """log(1 - p_y) = log sigmoid(logsumexp_{k != y} z_k - z_y): exact where 1 - p_y itself would be 0."""
    z = as_logits(logits)
    own, rest = _split(z, as_labels(labels, z.shape))
    return np.asarray(-np.logaddexp(0.0, own - logsumexp(rest)))


def log_p_true(logits: ArrayLike, labels: ArrayLike) -> Floats:
    """log p_y <= 0, never clipped: -200 where p_y is exp(-200), -exp(-200) where it is 1 - exp(-200)."""
    z = as_logits(logits)
    own, rest = _split(z, as_labels(labels, z.shape))
    return np.asarray(-np.logaddexp(0.0, logsumexp(rest) - own))


def log_one_minus_confidence(logits: ArrayLike) -> Floats:
    """log(1 - max_k p_k): exact where the confidence itself would be 1."""
    z = as_logits(logits)
    own, rest = _split(z, z.argmax(axis=-1))
    return np.asarray(-np.logaddexp(0.0, own - logsumexp(rest)))


def log_odds(logits: ArrayLike) -> Floats:
    """log(p_k / (1 - p_k)) = z_k - logsumexp_{j != k} z_j of every class, [..., n, K]; finite where p_k rounds to 1."""
    z = as_logits(logits)
    odds = np.empty_like(z)
    for k in range(z.shape[-1]):
        odds[..., k] = z[..., k] - logsumexp(np.delete(z, k, axis=-1))
    return odds


def _finite_margin(margin: ArrayLike) -> Floats:
    m = as_array(margin, "margin").astype(np.float64, copy=False)
    check_finite(m, "margin")
    return m


def log_exp_moment(margin: ArrayLike) -> Floats:
    """log Q = log mean_i exp(-m_i) over the last axis; cannot overflow.

    Raises:
        InputError: NaN, infinite or empty margins.
    """
    m = _finite_margin(margin)
    return per_row(logsumexp(-m) - np.log(m.shape[-1]), m.shape[:-1])


def exp_moment(margin: ArrayLike) -> Floats:
    """Q = mean_i exp(-m_i) over the last axis, the exponential margin moment of arXiv 2604.20614.

    > 0, and > 1 is possible; inf where Q exceeds float64 (then `log_exp_moment` is what is needed).

    Raises:
        InputError: NaN, infinite or empty margins.
    """
    m = _finite_margin(margin)
    with np.errstate(over="ignore"):
        return per_row(np.exp(-m).mean(axis=-1), m.shape[:-1])


def sigmoid_moment(margin: ArrayLike, classes: int) -> Floats:
    """mean_i sigmoid(log(K - 1) - m_i): >= mean(1 - p_y), <= min(1, (K - 1) Q); in (0, 1).

    Raises:
        InputError: NaN, infinite or empty margins.
    """
    m = _finite_margin(margin)
    return per_row(np.exp(-np.logaddexp(0.0, m - np.log(classes - 1))).mean(axis=-1), m.shape[:-1])


def tail(margin: ArrayLike, thresholds: ArrayLike) -> Floats:
    """Share of samples with m <= t, for each threshold t.

    Args:
        margin: [..., n].
        thresholds: [t], in logits.

    Returns:
        [..., t], in [0, 1]. By Markov's inequality at most exp(t) Q.
    """
    m = np.sort(_finite_margin(margin), axis=-1)
    t = _finite_margin(thresholds)
    rows = m.reshape(-1, m.shape[-1])
    below = np.stack([np.searchsorted(row, t, side="right") for row in rows])
    return np.asarray((below / m.shape[-1]).reshape(*m.shape[:-1], *t.shape))
