"""Size and power of fit_bound on studies of known truth: python -m tests.bench.bench_tailfit [studies] [seed].

Rates of p <= .05 and of REFUTED for exponent 1 and for a shared exponent, and how often the law that made the data has
the least error on runs left out.
"""

import sys
from collections import Counter

import numpy as np

from analysis.tailfit import fit_bound
from tests.generators import generate

TRUE_LAW = {"G1": ("paper", "shared", "separate"), "G4": ("saturating",), "G6": ("separate",)}


def main(studies: int = 400, seed: int = 0) -> None:
    """Print one row per generator and exponent."""
    print(
        f"{studies} studies per generator, seed {seed}; Monte Carlo error of .05: {np.sqrt(0.05 * 0.95 / studies):.3f}"
    )
    for kind, laws in TRUE_LAW.items():
        rejected: Counter[str] = Counter()
        refuted: Counter[str] = Counter()
        right = 0
        for index in range(studies):
            study = generate(kind, np.random.default_rng([seed, index]))
            found = fit_bound(study.frame(), "ece", "lam", "Q", rivals=("loss", "gnorm"))
            for slope in found.exponents.slopes:
                rejected[slope.name] += slope.pvalue <= 0.05
                refuted[slope.name] += slope.outcome == "REFUTED"
            right += found.best("lam") in laws
        for name in rejected:
            print(f"{kind}  {name:14s} p <= .05 {rejected[name] / studies:.3f}  REFUTED {refuted[name] / studies:.3f}")
        print(f"{kind}  best law of lam is {' or '.join(laws)}: {right / studies:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
