"""Restricted cubic splines, and regressions on them run by run."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

KNOT_QUANTILES = (0.05, 0.275, 0.5, 0.725, 0.95)
"""Harrell (2015), Regression Modeling Strategies, table 2.3, for 5 knots."""


def restricted_cubic(values: Array) -> Array:
    """Orthonormal basis of the restricted cubic splines with 5 knots at the quantiles of the values.

    The span holds the constant, and is linear beyond the outer knots. Columns that the values cannot tell apart are
    dropped, so that tied knots do no harm.

    Args:
        values: [...], finite.

    Returns:
        [..., columns], at most 5 columns, orthonormal over all values.
    """
    flat = values.ravel()
    knots = np.quantile(flat, KNOT_QUANTILES)
    spread = knots[-1] - knots[0]
    columns = [np.ones_like(flat), flat - flat.mean()]
    if spread > 0 and knots[-1] > knots[-2]:
        cubes = [np.maximum(flat - knot, 0.0) ** 3 / spread**2 for knot in knots]
        last = knots[-1] - knots[-2]
        for j in range(len(knots) - 2):
            columns.append(
                cubes[j] - cubes[-2] * (knots[-1] - knots[j]) / last + cubes[-1] * (knots[-2] - knots[j]) / last
            )
    left, singular, _ = np.linalg.svd(_unit_columns(np.stack(columns, axis=1)), full_matrices=False)
    basis = left[:, singular > 1e-9 * singular[0]]
    return np.asarray(basis.reshape(*values.shape, -1))


def _unit_columns(matrix: Array) -> Array:
    norms = np.linalg.norm(matrix, axis=0)
    return np.asarray(matrix / np.where(norms > 0, norms, 1.0))


def residuals(basis: Array, values: Array) -> Array:
    """What of the values, [runs, steps], an orthonormal basis [runs, steps, columns] over all of them leaves."""
    return np.asarray(values - basis @ np.einsum("rtc,rt->c", basis, values))


def held_out_errors(basis: Array, values: Array) -> Array:
    """Mean squared error of each run, predicted by a regression on the other runs.

    Args:
        basis: [runs, steps, columns], orthonormal over all runs.
        values: [runs, steps].

    Returns:
        [runs].
    """
    grams = np.einsum("rtc,rtd->rcd", basis, basis)
    moments = np.einsum("rtc,rt->rc", basis, values)
    errors = np.empty(len(values))
    for run in range(len(values)):
        gram = grams.sum(axis=0) - grams[run]
        # What the other runs leave undetermined is set to 0 by the pseudo-inverse, not extrapolated.
        weights = np.linalg.pinv(gram, rcond=1e-9, hermitian=True) @ (moments.sum(axis=0) - moments[run])
        errors[run] = np.mean((values[run] - basis[run] @ weights) ** 2)
    return errors
