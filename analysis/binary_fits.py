"""Recalibration maps of one score to a rate, fitted to binary outcomes: isotonic, histogram, logistic."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import isotonic_regression, minimize

from analysis.binning import BinSums, width_index
from analysis.predictions import Array, Floats

Bounds = Sequence[tuple[float | None, float | None]]
Objective = Callable[[Floats], tuple[float, Floats]]


def isotonic_knots(scores: Array, outcomes: Array) -> tuple[Floats, Floats]:
    """The nondecreasing step heights nearest to the outcomes in squared error, by pool-adjacent-violators.

    Samples of equal score are one point with their summed weight. Between knots `numpy.interp` is linear; outside
    it is constant.

    Args:
        scores: [n].
        outcomes: in [0, 1], [n].

    Returns:
        The distinct scores, ascending, and the height at each.
    """
    x, inverse, count = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=outcomes) / count
    return x, np.asarray(isotonic_regression(means, weights=count).x)


def histogram_rates(scores: Array, outcomes: Array, bins: int) -> Floats:
    """Mean outcome in each of equal-width bins (b/M, (b+1)/M] of the score, [bins]; NaN in an empty bin."""
    sums = BinSums(width_index(np.asarray(scores), bins, "right")[None], bins)
    count = sums.counts()[0]
    return np.asarray(sums(np.asarray(outcomes, dtype=np.float64))[0] / np.where(count > 0, count, np.nan))


def histogram_lookup(scores: Array, rates: Floats) -> Floats:
    """The rate of each score's bin; in a bin that was empty, the score itself."""
    found = rates[width_index(np.asarray(scores), len(rates), "right")]
    return np.asarray(np.where(np.isnan(found), scores, found))


def fit_logistic(features: Floats, targets: Floats, start: Floats, bounds: Bounds | None = None) -> Floats:
    """Coefficients w that minimise the mean log loss of sigmoid(features @ w), a convex problem.

    Args:
        features: [n, d].
        targets: in [0, 1], [n].
        start: [d].
        bounds: (low, high) of each coefficient, None for no bound.
    """

    def objective(w: Floats) -> tuple[float, Floats]:
        u = features @ w
        loss = np.logaddexp(0.0, u) - targets * u
        return float(loss.mean()), features.T @ (np.exp(-np.logaddexp(0.0, -u)) - targets) / len(u)

    return minimise(objective, start, bounds)


def minimise(objective: Objective, start: Floats, bounds: Bounds | None = None) -> Floats:
    """Minimum of a convex function that returns its value and gradient, by L-BFGS-B."""
    options = {"maxiter": 2000, "maxfun": 5000, "ftol": 1e-14, "gtol": 1e-9}
    return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)


def platt_targets(outcomes: Floats) -> Floats:
    """Platt 1999: (N+ + 1)/(N+ + 2) for the positive, 1/(N- + 2) for the negative outcomes."""
    positive = outcomes.sum()
    return np.asarray(np.where(outcomes > 0.5, (positive + 1) / (positive + 2), 1 / (len(outcomes) - positive + 2)))
