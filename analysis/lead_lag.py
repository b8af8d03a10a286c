"""Which of two series moves first: the lag at which a run's whitened series agree best, then t over runs."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.panel import DesignError, Panel
from analysis.permutation import ar1, centre, whiten

Array = NDArray[np.float64]

GRID_VARIANCE = 1 / 12
"""Variance of rounding to the recorded rows: a lag is not known more finely, even when all runs agree on a row."""


@dataclass(frozen=True)
class Lag:
    """How much later y moves than x.

    Attributes:
        mean: over runs, in steps; positive where y follows x.
        interval: 95% t interval over runs.
        pvalue: of mean = 0, two-sided t.
        per_run: lag of each run, in steps.
        largest: how far was searched, in steps.
    """

    mean: float
    interval: tuple[float, float]
    pvalue: float
    per_run: tuple[float, ...]
    largest: float


def lead_lag(panel: Panel, x: str, y: str, lags: int) -> Lag:
    """Cross-correlate each run's centred, whitened series, and take the lag of the highest value.

    Level cross-correlations are not used: those of two smooth curves peak wherever the curves do.

    Args:
        panel: the series.
        x: the first.
        y: the one that may follow.
        lags: how many recorded rows to search on either side.

    Raises:
        DesignError: recorded steps are not evenly spaced, or too few for so many lags.
    """
    grouping = panel.grouping
    gaps = np.unique(np.diff(panel.steps, axis=1)[grouping.valid[:, 1:]])
    if len(gaps) > 1:
        raise DesignError("the lag needs evenly spaced steps; recorded or shared steps are not")
    if 2 * lags >= panel.counts[0]:
        raise DesignError(f"lags = {lags}: more than half of the {panel.counts[0]} steps of the shortest run")
    centred = centre(panel.logs[x], grouping), centre(panel.logs[y], grouping)
    coefficient = ar1(centred, grouping)
    a, b = (whiten(series, coefficient, grouping) for series in centred)
    width = a.shape[1]
    shifts = np.arange(-lags, lags + 1)
    cross = np.stack(
        [np.sum(a[:, max(0, -k) : width - max(0, k)] * b[:, max(0, k) : width - max(0, -k)], axis=1) for k in shifts]
    )
    per_run = shifts[cross.argmax(axis=0)].astype(float)
    spacing = float(gaps[0])
    mean = float(per_run.mean())
    runs = len(per_run)
    error = math.sqrt(max(float(per_run.var(ddof=1)), GRID_VARIANCE) / runs)
    half = float(stats.t.ppf(0.975, runs - 1)) * error
    pvalue = float(2 * stats.t.sf(abs(mean) / error, runs - 1))
    return Lag(
        mean * spacing,
        ((mean - half) * spacing, (mean + half) * spacing),
        pvalue,
        tuple((per_run * spacing).tolist()),
        lags * spacing,
    )
