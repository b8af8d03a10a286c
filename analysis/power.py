"""What a design can show before it is run: the smallest attainable p, and the power on synthetic studies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.signal import lfilter

from analysis.coupling import ALPHA, EFFECT, MIN_SEEDS
from analysis.permutation import Grouping, associate
from analysis.plugins import SettingError
from analysis.results import Result

Array = NDArray[Any]


@dataclass(frozen=True)
class Alternative:
    """A synthetic study whose two series follow one driver: rise-peak-decay curves in logarithms, with noise.

    Attributes:
        seed_sd: log-sd over runs of peak time and exponents.
        driver_sd: sd of the driver's AR(1) noise.
        own_sd: sd of each series' own AR(1) noise.
    """

    seed_sd: float
    driver_sd: float
    own_sd: float


ALTERNATIVES = {"G1": Alternative(0.25, 0.12, 0.10), "G1W": Alternative(0.08, 0.08, 0.25)}
"""A clear coupling, and a weak one: seeds that are near replicas under larger noise of their own."""


@dataclass(frozen=True)
class PowerPlan(Result):
    """What a design of learning rates x seeds x steps can show.

    Attributes:
        learning_rates: how many, of each optimizer.
        seeds: runs of each.
        steps: recorded.
        studies: synthetic studies drawn.
        smallest_pvalue: that the permutation test can attain.
        detected: by alternative, share of studies with p <= .05.
        supported: by alternative, share of studies with the verdict SUPPORTED.
    """

    learning_rates: int
    seeds: int
    steps: int
    studies: int
    smallest_pvalue: float
    detected: dict[str, float]
    supported: dict[str, float]

    def summary(self) -> str:
        """The design, the smallest attainable p and the power, with its Monte Carlo standard error."""
        lines = [
            f"{self.learning_rates} learning rates x {self.seeds} seeds x {self.steps} steps: "
            f"smallest attainable p {self.smallest_pvalue:.2g}"
        ]
        if not can_conclude(self.learning_rates, self.seeds, self.smallest_pvalue):
            lines.append(
                f"  always INCONCLUSIVE: expected 2 or more learning rates, {MIN_SEEDS} or more seeds, p <= .05"
            )
        for kind, share in self.supported.items():
            error = np.sqrt(share * (1 - share) / self.studies)
            lines.append(
                f"  power on {kind}: P(SUPPORTED) = {share:.2f} +- {error:.2f}, P(p <= .05) = {self.detected[kind]:.2f}"
            )
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """One row per alternative."""
        design = {"learning_rates": self.learning_rates, "seeds": self.seeds, "steps": self.steps}
        return pd.DataFrame(
            {
                **design,
                "alternative": kind,
                "smallest_pvalue": self.smallest_pvalue,
                "detected": self.detected[kind],
                "supported": self.supported[kind],
                "studies": self.studies,
            }
            for kind in self.supported
        )


def plan(
    learning_rates: int = 4,
    seeds: int = 3,
    steps: int = 300,
    *,
    studies: int = 200,
    alternatives: Sequence[str] = tuple(ALTERNATIVES),
    seed: int = 0,
) -> PowerPlan:
    """Smallest attainable p and power of the coupling test for a design.

    Args:
        learning_rates: of an optimizer; they span 0.01 to 0.3.
        seeds: runs of each learning rate.
        steps: recorded steps of each run.
        studies: synthetic studies to draw for each alternative.
        alternatives: of `ALTERNATIVES`.
        seed: of the draws.

    Raises:
        SettingError: a count that is too small, or no such alternative.
    """
    for name, value, least in (
        ("learning_rates", learning_rates, 1),
        ("seeds", seeds, 1),
        ("steps", steps, 30),
        ("studies", studies, 1),
    ):
        if value < least:
            raise SettingError(f"{name} = {value}: expected {least} or more")
    unknown = [kind for kind in alternatives if kind not in ALTERNATIVES]
    if unknown:
        raise SettingError(f"alternatives = {unknown[0]!r}: no such study; accepted: {', '.join(ALTERNATIVES)}")
    rates = np.geomspace(0.01, 0.3, learning_rates)
    stratum = np.repeat(np.arange(learning_rates), seeds)
    grouping = Grouping(stratum, np.ones((len(stratum), steps), bool))
    smallest = grouping.smallest_pvalue
    detected, supported = {}, {}
    possible = can_conclude(learning_rates, seeds, smallest)
    for kind in alternatives:
        generator = np.random.default_rng(seed)
        hits, verdicts = 0, 0
        for _ in range(studies if seeds > 1 else 0):
            x, y = simulate(ALTERNATIVES[kind], rates, seeds, steps, generator)
            found = associate(x, y, grouping)
            hits += found.pvalue <= ALPHA
            verdicts += found.pvalue <= ALPHA and found.leading.z > 0 and found.largest >= EFFECT
        detected[kind] = hits / studies
        supported[kind] = verdicts / studies if possible else 0.0
    return PowerPlan(learning_rates, seeds, steps, studies, smallest, detected, supported)


def can_conclude(learning_rates: int, seeds: int, smallest_pvalue: float) -> bool:
    """Whether any verdict but INCONCLUSIVE can come of the design."""
    return learning_rates >= 2 and seeds >= MIN_SEEDS and smallest_pvalue <= ALPHA


def simulate(
    alternative: Alternative, rates: Array, seeds: int, steps: int, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Log x and log y of one study, each [len(rates) * seeds, steps], runs of a rate together.

    Both are D plus AR(1) noise of their own, where D = log 2 - log(u^-a + u^b) + AR(1) noise and u is training time
    over the peak's; the peak comes sooner at a larger rate, as rate^-1/2.
    """
    runs = len(rates) * seeds
    clock = np.repeat((rates / np.exp(np.log(rates).mean())) ** -0.5, seeds)
    peak, rise, decay = (
        (scale * np.exp(alternative.seed_sd * generator.standard_normal(runs)))[:, None]
        for scale in (0.15 * clock, np.array(0.8), np.array(1.2))
    )
    log_u = np.log(np.arange(1, steps + 1) / steps / peak)
    curve = np.log(2) - np.logaddexp(-rise * log_u, decay * log_u)
    driver = curve + alternative.driver_sd * _noise(generator, runs, steps)
    x = driver + alternative.own_sd * _noise(generator, runs, steps)
    y = driver + alternative.own_sd * _noise(generator, runs, steps)
    return x, y


def _noise(generator: np.random.Generator, runs: int, steps: int, coefficient: float = 0.95) -> Array:
    """Stationary AR(1) paths of unit variance, [runs, steps]."""
    shocks = generator.standard_normal((runs, steps))
    shocks[:, 1:] *= np.sqrt(1 - coefficient**2)
    return np.asarray(lfilter([1.0], [1.0, -coefficient], shocks, axis=1))
