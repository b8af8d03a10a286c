"""Means over runs, compared with what is claimed of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.coupling import ALPHA
from analysis.results import Outcome


@dataclass(frozen=True)
class Mean:
    """An estimate with a t distribution.

    Attributes:
        value: the estimate.
        error: its standard error.
        freedom: degrees of freedom.
    """

    value: float
    error: float
    freedom: float

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The two-sided t interval."""
        half = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * self.error
        return self.value - half, self.value + half

    def pvalue(self, claimed: float = 0.0) -> float:
        """Of being ``claimed``, two-sided."""
        if self.error == 0:
            return 1.0 if self.value == claimed else 0.0
        return float(2 * stats.t.sf(abs(self.value - claimed) / self.error, self.freedom))


def mean(values: Sequence[float]) -> Mean | None:
    """Over runs; None for fewer than 3."""
    if len(values) < 3:
        return None
    return Mean(float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values)), len(values) - 1)


def difference(first: Mapping[float, Sequence[float]], second: Mapping[float, Sequence[float]]) -> Mean | None:
    """Mean of the first over its learning rates, less that of the second.

    The recorded learning rates count equally and are taken as they are; seeds are the sample. Variances within
    learning rates, degrees of freedom by Satterthwaite. None where a learning rate has fewer than 2 seeds.
    """
    parts: list[tuple[float, int]] = []
    means = []
    for groups in (first, second):
        if not groups or any(len(values) < 2 for values in groups.values()):
            return None
        means.append(float(np.mean([np.mean(values) for values in groups.values()])))
        parts += [(float(np.var(v, ddof=1)) / len(v) / len(groups) ** 2, len(v) - 1) for v in groups.values()]
    variance = sum(part for part, _ in parts)
    below = sum(part**2 / freedom for part, freedom in parts)
    freedom = variance**2 / below if below > 0 else float(sum(f for _, f in parts))
    return Mean(means[0] - means[1], math.sqrt(variance), freedom)


def decide_above(found: Mean, threshold: float, unit: str = "") -> tuple[Outcome, str]:
    """Whether a mean that is claimed to be positive is so, by at least the threshold.

    SUPPORTED: p <= .05, and the mean is the threshold or more. REFUTED: p <= .05 with the other sign, or the 95%
    interval lies below the threshold. INCONCLUSIVE otherwise.
    """
    low, high = found.interval()
    p = found.pvalue()
    numbers = f"{found.value:+.3g}{unit}, 95% interval [{low:+.3g}, {high:+.3g}], p = {p:.3g}"
    if p <= ALPHA and found.value >= threshold:
        return Outcome.SUPPORTED, f"{numbers}, and the effect is {threshold:g} or more"
    if p <= ALPHA and found.value < 0:
        return Outcome.REFUTED, f"{numbers}: the other way round"
    if high < threshold:
        return Outcome.REFUTED, f"{numbers}: the interval leaves out an effect of {threshold:g}"
    return Outcome.INCONCLUSIVE, f"{numbers}, against a threshold of {threshold:g}: more seeds would tell"


def decide_equal(found: Mean, claimed: float, margin: float) -> tuple[Outcome, str]:
    """Whether a mean is what is claimed of it, up to a margin.

    SUPPORTED: the 90% interval lies within the margin (two one-sided tests at .05). REFUTED: p <= .05, and the mean
    is off by the margin or more. INCONCLUSIVE otherwise.
    """
    low, high = found.interval(0.9)
    p = found.pvalue(claimed)
    numbers = (
        f"{found.value:.3g}, 90% interval [{low:.3g}, {high:.3g}], against {claimed:g} +- {margin:.3g}, p = {p:.3g}"
    )
    if claimed - margin < low and high < claimed + margin:
        return Outcome.SUPPORTED, f"{numbers}: the interval lies within the margin"
    if p <= ALPHA and abs(found.value - claimed) >= margin:
        return Outcome.REFUTED, f"{numbers}: off by the margin or more"
    return Outcome.INCONCLUSIVE, f"{numbers}: more runs would tell"
