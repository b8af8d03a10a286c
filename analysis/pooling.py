"""Several tests together: Holm's adjustment, and the mean of several rho_seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.permutation import Rho


def holm(pvalues: Sequence[float]) -> list[float]:
    """P-values adjusted for the family they form, by Holm (1979), in the order given."""
    adjusted, running = [0.0] * len(pvalues), 0.0
    for rank, index in enumerate(np.argsort(pvalues, kind="stable")):
        running = max(running, min(1.0, pvalues[index] * (len(pvalues) - rank)))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True)
class PooledRho:
    """Random-effects mean of several rho_seed.

    Attributes:
        mean: in [-1, 1], from the mean of atanh(rho).
        interval: 95% interval, t.
        tau: between-study standard deviation of atanh(rho), by DerSimonian and Laird.
        studies: how many.
    """

    mean: float
    interval: tuple[float, float]
    tau: float
    studies: int


def pool(rhos: Sequence[Rho]) -> PooledRho:
    """Mean of the rho_seed of several studies, such as one for each optimizer.

    Raises:
        ValueError: fewer than 2 studies, or one whose |rho| is 1 or has no error.
    """
    from statsmodels.stats.meta_analysis import combine_effects  # seconds to import, and seldom needed

    if len(rhos) < 2:
        raise ValueError(f"{len(rhos)} studies: expected 2 or more to pool")
    if any(abs(rho.value) >= 1 or rho.error <= 0 for rho in rhos):
        raise ValueError("a rho of +-1, or one without error, has no finite weight")
    effects = np.arctanh([rho.value for rho in rhos])
    variances = np.array([(rho.error / (1 - rho.value**2)) ** 2 for rho in rhos])
    found = combine_effects(effects, variances, method_re="dl", use_t=True)
    low, high = np.tanh(found.conf_int(use_t=True)[1])  # of the random effect
    mean = float(np.tanh(found.mean_effect_re))
    return PooledRho(mean, (float(low), float(high)), float(np.sqrt(found.tau2)), len(rhos))
