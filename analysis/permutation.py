"""Association of two series over the runs of a study: the estimate, its permutation test and its interval.

Two curves that rise, peak and decay correlate whatever drives them, so nothing here looks along one run. Each
series is centred on the mean curve of its stratum (the runs of one optimizer and learning rate); what is left tells
the runs of a stratum apart. Under the null hypothesis the pairing of a run's x with its own y is then no better
than a pairing with the y of another seed, so the pairings within strata are the reference distribution. Permuting
over strata instead is wrong: the learning rate moves both peaks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[Any]

MAX_EXACT = 10_000
"""Up to this many pairings all are enumerated; beyond, as many are drawn."""

ROUNDING = 1e-12
"""Relative differences between runs up to this are rounding, not signal."""


@dataclass(frozen=True)
class Grouping:
    """Which runs and steps of padded arrays [runs, steps] count.

    Attributes:
        stratum: code of each run's stratum, int [runs], 0 to L - 1.
        valid: bool [runs, steps]; the runs of a stratum share their steps, strata need not.
    """

    stratum: Array
    valid: Array

    @property
    def members(self) -> list[Array]:
        """Rows of each stratum."""
        return [np.flatnonzero(self.stratum == code) for code in range(int(self.stratum.max()) + 1)]

    @property
    def pairings(self) -> int:
        """How many ways there are to pair x with y within strata."""
        return math.prod(math.factorial(len(rows)) for rows in self.members)

    @property
    def smallest_pvalue(self) -> float:
        """The smallest p-value that the permutation test can attain on this design."""
        return max(1 / self.pairings, 1 / (MAX_EXACT + 1)) if self.pairings > MAX_EXACT else 1 / self.pairings


@dataclass(frozen=True)
class Rho:
    """rho_seed = sum_i <x_i, y_i> / sqrt(sum_i |x_i|^2 sum_i |y_i|^2) of the centred series of all runs i.

    Attributes:
        value: the estimate, in [-1, 1].
        error: its delete-one-run jackknife standard error.
        freedom: degrees of freedom of its t distribution, runs less strata.
        z: the estimate over its standard deviation among the pairings.
    """

    value: float
    error: float
    freedom: int
    z: float

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The t interval, cut to [-1, 1]."""
        half = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * self.error
        return max(self.value - half, -1.0), min(self.value + half, 1.0)


@dataclass(frozen=True)
class Association:
    """Level and whitened rho_seed with the p-value of the larger.

    Attributes:
        level: of the centred series.
        whitened: of the centred series, quasi-differenced.
        coefficient: the AR(1) coefficient of the quasi-differences, one for all runs and both series.
        pvalue: of max(|z level|, |z whitened|) among the pairings within strata, two-sided.
        exact: whether all pairings were enumerated.
    """

    level: Rho
    whitened: Rho
    coefficient: float
    pvalue: float
    exact: bool

    @property
    def leading(self) -> Rho:
        """The form with the larger |z|, which decides the sign."""
        return self.level if abs(self.level.z) >= abs(self.whitened.z) else self.whitened

    @property
    def largest(self) -> float:
        """The larger of |level| and |whitened|."""
        return max(abs(self.level.value), abs(self.whitened.value))


def centre(values: Array, grouping: Grouping) -> Array:
    """Less the mean curve of the stratum, [runs, steps]; 0 where not valid."""
    centred = np.zeros_like(values)
    for rows in grouping.members:
        centred[rows] = values[rows] - values[rows].mean(axis=0)
    return np.where(grouping.valid, centred, 0.0)


def ar1(series: Sequence[Array], grouping: Grouping) -> float:
    """One AR(1) coefficient for all runs of several centred series, each scaled to unit norm first."""
    both = grouping.valid[:, 1:] & grouping.valid[:, :-1]
    products = squares = 0.0
    for centred in series:
        scale = float(np.vdot(centred, centred))
        products += float(np.vdot(centred[:, 1:], centred[:, :-1])) / scale
        squares += float(np.sum(centred[:, :-1] ** 2, where=both)) / scale
    return products / squares


def whiten(centred: Array, coefficient: float, grouping: Grouping) -> Array:
    """Quasi-differences v_t - coefficient v_(t-1), [runs, steps - 1]; 0 where either is not valid."""
    both = grouping.valid[:, 1:] & grouping.valid[:, :-1]
    return np.where(both, centred[:, 1:] - coefficient * centred[:, :-1], 0.0)


def associate(x: Array, y: Array, grouping: Grouping, seed: int = 0) -> Association:
    """Test whether the runs of a stratum whose x is high are those whose y is high.

    Args:
        x: [runs, steps], padded where not valid. At least 2 runs in each stratum.
        y: the same.
        grouping: the strata and valid steps.
        seed: of the draws, where the pairings are too many to enumerate.

    Raises:
        ValueError: a series does not differ among the runs of any stratum.
    """
    scales = [max(1.0, float(np.abs(series).max())) for series in (x, y)]
    x, y = centre(x, grouping), centre(y, grouping)
    if any(np.abs(v).max() <= ROUNDING * scale for v, scale in zip((x, y), scales, strict=True)):
        raise ValueError("a series does not differ among the runs of any stratum")
    coefficient = ar1((x, y), grouping)
    forms = [(x, y), (whiten(x, coefficient, grouping), whiten(y, coefficient, grouping))]
    grams = [[a[rows] @ b[rows].T for rows in grouping.members] for a, b in forms]
    # Rows and columns of a gram sum to 0, so its sum over random pairings has mean 0 and this variance.
    spread = [math.sqrt(sum(float(np.sum(g**2)) / (len(g) - 1) for g in gram)) for gram in grams]
    observed = [sum(float(np.trace(g)) for g in gram) for gram in grams]
    z = [o / s if s > 0 else 0.0 for o, s in zip(observed, spread, strict=True)]
    largest = np.max(
        [np.abs(sums) / s for sums, s in zip(_pairing_sums(grams, grouping, seed), spread, strict=True) if s > 0],
        axis=0,
    )
    # Pairings that tie with the observed one in exact arithmetic count, whatever the rounding.
    reached = int(np.sum(largest >= max(map(abs, z)) * (1 - 1e-9)))
    exact = grouping.pairings <= MAX_EXACT
    pvalue = reached / len(largest) if exact else (1 + reached) / (1 + len(largest))
    level, whitened = (_rho(a, b, grouping, score) for (a, b), score in zip(forms, z, strict=True))
    return Association(level, whitened, coefficient, pvalue, exact)


def _pairing_sums(grams: list[list[Array]], grouping: Grouping, seed: int) -> list[Array]:
    """Sum over runs of <x_i, y_pairing(i)> for each pairing, for each form."""
    sizes = [len(rows) for rows in grouping.members]
    if grouping.pairings <= MAX_EXACT:
        return [_all_sums(gram, sizes) for gram in grams]
    generator = np.random.default_rng(seed)
    sums = [np.zeros(MAX_EXACT) for _ in grams]
    for stratum, size in enumerate(sizes):
        drawn = generator.random((MAX_EXACT, size)).argsort(axis=1)
        for total, gram in zip(sums, grams, strict=True):
            total += gram[stratum][np.arange(size), drawn].sum(axis=1)
    return sums


def _all_sums(gram: list[Array], sizes: list[int]) -> Array:
    sums = np.zeros(1)
    for block, size in zip(gram, sizes, strict=True):
        of_block = block[np.arange(size), _permutations(size)].sum(axis=1)
        sums = np.add.outer(sums, of_block).ravel()
    return sums


@cache
def _permutations(size: int) -> Array:
    return np.array(list(permutations(range(size))))


def _rho(x: Array, y: Array, grouping: Grouping, z: float) -> Rho:
    products = np.stack([np.sum(a * b, axis=1) for a, b in ((x, y), (x, x), (y, y))])
    counts = np.bincount(grouping.stratum)[grouping.stratum]
    # Without run i the rest of its stratum is centred anew, which takes n / (n - 1) of its own product away.
    without = products.sum(axis=1, keepdims=True) - products * counts / (counts - 1)
    runs, freedom = len(x), len(x) - int(grouping.stratum.max()) - 1
    left = _ratio(without)
    error = math.sqrt((runs - 1) / runs * float(np.sum((left - left.mean()) ** 2)))
    return Rho(float(_ratio(products.sum(axis=1))), error, freedom, z)


def _ratio(products: Array) -> Array:
    xy, xx, yy = products
    norms = np.sqrt(np.maximum(xx, 0) * np.maximum(yy, 0))
    return np.asarray(np.divide(xy, norms, out=np.zeros_like(xy), where=norms > 0))
