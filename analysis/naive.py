"""Correlations along single runs. Descriptive only: their p-values are not valid for curves that rise and decay.

On independent synthetic series of that shape the naive Pearson test rejects in 99.8% of runs and the one with an
effective sample size in 88%. What tells a coupling from a shared shape is the correlation with another seed's
series, which stands beside.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import fft, stats

from analysis.panel import Panel

Array = NDArray[np.float64]


def describe(panel: Panel, x: str, y: str) -> pd.DataFrame:
    """Pearson correlations of each run's series.

    Returns:
        One row per run: run; r and p of the series as they are; r_differences and p_differences of their first
        differences; n_effective, p_effective of r by Bartlett's effective sample size; r_log of their logarithms,
        and r_log_other, the mean r of log x with log y of the other runs of its stratum.
    """
    tables = []
    for members in panel.grouping.members:
        inside = panel.grouping.valid[members[0]]
        a, b = panel.logs[x][members][:, inside], panel.logs[y][members][:, inside]
        cross = _unit(a) @ _unit(b).T
        raw_x, raw_y = np.exp(a), np.exp(b)
        steps = np.full(len(members), float(a.shape[1]))
        sizes = np.array([effective_size(*pair) for pair in zip(raw_x, raw_y, strict=True)])
        r = _pearson(raw_x, raw_y)
        r_differences = _pearson(np.diff(raw_x), np.diff(raw_y))
        tables.append(
            pd.DataFrame(
                {
                    "run": [panel.ids[row] for row in members],
                    "r": r,
                    "p": _pvalues(r, steps),
                    "r_differences": r_differences,
                    "p_differences": _pvalues(r_differences, steps - 1),
                    "n_effective": sizes,
                    "p_effective": _pvalues(r, sizes),
                    "r_log": np.diag(cross),
                    "r_log_other": (cross.sum(axis=1) - np.diag(cross)) / (len(members) - 1),
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def effective_size(x: Array, y: Array) -> float:
    """Bartlett's number of independent pairs, n / (1 + 2 sum_k (1 - k/n) r_x(k) r_y(k)), lags up to n/4.

    Source: Bartlett (1935), as in Bayley and Hammersley (1946). Between 3 and n.
    """
    n = len(x)
    lags = np.arange(1, n // 4 + 1)
    products = _autocorrelation(x)[lags] * _autocorrelation(y)[lags]
    return float(np.clip(n / max(1 + 2 * np.sum((1 - lags / n) * products), 1 / n), 3, n))


def _autocorrelation(series: Array) -> Array:
    n = len(series)
    centred = series - series.mean()
    spectrum = np.abs(fft.rfft(centred, fft.next_fast_len(2 * n, real=True))) ** 2
    covariance = fft.irfft(spectrum, fft.next_fast_len(2 * n, real=True))[:n]
    return np.asarray(covariance / covariance[0])


def _unit(rows: Array) -> Array:
    """Each row centred, of unit norm; NaN where it is constant."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    norms = np.where(np.ptp(rows, axis=1) > 0, np.linalg.norm(centred, axis=1), np.nan)
    return np.asarray(centred / norms[:, None])


def _pearson(x: Array, y: Array) -> Array:
    return np.asarray(np.clip(np.sum(_unit(x) * _unit(y), axis=1), -1, 1))


def _pvalues(r: Array, sizes: Array) -> Array:
    """Two-sided, of no correlation between as many independent pairs."""
    left = np.maximum(1 - r**2, np.finfo(float).tiny)
    return np.asarray(2 * stats.t.sf(np.abs(r) * np.sqrt((sizes - 2) / left), sizes - 2))
