"""Sampling error of any metric, by resampling samples. Use it as `analysis.calibration.bootstrap`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from analysis.binning import check_count, choose
from analysis.plugins import SettingError
from analysis.predictions import Array, Floats, InputError, as_array

_BLOCK = 2**22


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap interval; arrays of the metric's shape.

    Attributes:
        estimate: the metric on the samples.
        low, high: ends of the interval.
        level: nominal coverage.
    """

    estimate: Floats
    low: Floats
    high: Floats
    level: float


def resample(
    statistic: Callable[..., ArrayLike], arrays: Sequence[Array], axes: Sequence[int], resamples: int, seed: int
) -> Floats:
    """The statistic on resamples of the samples, drawn with replacement, all arrays and rows alike; [..., B]."""
    n = arrays[0].shape[axes[0]]
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // max(array.size for array in arrays))
    found = []
    for start in range(0, resamples, block):
        drawn = generator.integers(0, n, (min(block, resamples - start), n))
        pieces = (np.take(array, drawn, axis=axis) for array, axis in zip(arrays, axes, strict=True))
        found.append(np.asarray(statistic(*pieces), dtype=np.float64))
    return np.concatenate(found, axis=-1)


def bootstrap(
    statistic: Callable[..., ArrayLike],
    *arrays: ArrayLike,
    axes: Sequence[int] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    method: Literal["basic", "percentile"] = "basic",
    within: tuple[float, float] = (-np.inf, np.inf),
    seed: int = 0,
) -> Interval:
    """Bootstrap interval of a metric over samples.

    The ECE is biased upwards, more so on a resample than on the sample. "basic" reflects the resamples about the
    estimate, (2 e - q_high, 2 e - q_low), and so corrects it; "percentile" takes (q_low, q_high) and doubles it.
    Measured coverage of 95% intervals of the ECE over 15 bins, basic against percentile: .93 and .96 where the true
    ECE is .10 and n = 2,000; .90 and .11 for .02; .54 and .00 for 0. So near calibration neither is to be relied
    on, and a percentile interval says nothing.

    Args:
        statistic: for example ``ece``, or a function of logits and labels; takes arrays with any leading axes,
            in the order given here, and returns one number for each.
        *arrays: data that share the samples: ``confidence, correct``, or ``logits, labels``.
        axes: the axis of the samples in each array, negative; the last by default. For logits [..., n, K] it
            is -2.
        resamples: number of resamples, each of n samples, the same for all rows.
        level: coverage in (0, 1).
        method: "basic" or "percentile".
        within: the metric's range, to which the ends are cut.
        seed: of the generator.

    Returns:
        Estimate, low and high.

    Raises:
        InputError: arrays that do not share the number of samples.
        SettingError: an option out of range.
    """
    check_count("resamples", resamples)
    choose("method", method, ("basic", "percentile"))
    if not 0 < level < 1:
        raise SettingError(f"level = {level!r}; expected a number in (0, 1)")
    data = [as_array(array, "array") for array in arrays]
    axes = (-1,) * len(data) if axes is None else tuple(axes)
    lengths = {array.shape[axis] for array, axis in zip(data, axes, strict=True)}
    if len(lengths) != 1:
        raise InputError(f"bootstrap: arrays of {sorted(lengths)} samples; expected one number")
    estimate = np.asarray(statistic(*data), dtype=np.float64)
    values = resample(statistic, data, axes, resamples, seed)
    return interval(estimate, values, level, method, within)


def interval(
    estimate: Floats,
    values: Floats,
    level: float = 0.95,
    method: Literal["basic", "percentile"] = "basic",
    within: tuple[float, float] = (-np.inf, np.inf),
) -> Interval:
    """The interval from an estimate [...] and its values on resamples [..., B]; see `bootstrap`."""
    # An order statistic, not a mean of two: an infinite NLL stays infinite instead of turning into NaN.
    ends = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(values, ends, axis=-1, method="inverted_cdf")
    if method == "basic":
        with np.errstate(invalid="ignore"):
            reflected = (2 * estimate - end for end in (high, low))
            low, high = (np.where(np.isfinite(estimate), end, estimate) for end in reflected)
    return Interval(estimate, np.clip(low, *within), np.clip(high, *within), level)
