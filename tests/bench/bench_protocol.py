"""Error rates and power of the coupling, mediation, exponent and lag tests on studies of known truth.

    python -m tests.bench.bench_protocol [M [FIRST_SEED]] [KIND ...]

Each kind of ``tests.generators`` is drawn M times (400 unless told) and analysed through the public functions.
"""

import sys
import time
from collections import defaultdict
from math import sqrt

import numpy as np

from analysis.coupling import couple
from analysis.exponents import exponents
from analysis.mediation import mediate
from tests.generators import COUPLED, NULLS, generate

COUPLING = (*NULLS, "G1S", "G1", "G1W", "G5", "G7")
MEDIATION = ("G0", "G1", "G1M", "G2", "G3", "GE", "G4", "G6")
EXPONENTS = ("G1", "G6", "G4")
LAGS = ("G1", "G7")


def rates(kind: str, studies: int, first: int = 0) -> dict[str, float]:
    """Shares of studies, by what happened."""
    seen: dict[str, list[float]] = defaultdict(list)
    for index in range(first, first + studies):
        frame = generate(kind, np.random.default_rng(index)).frame()
        result = couple(frame, "ece", "lam", lags=20 if kind in LAGS else 0)
        seen["coupling p <= .05"].append(result.pvalue <= 0.05)
        seen["coupling " + "SUPPORTED"].append(result.verdict == "SUPPORTED")
        seen["coupling " + "REFUTED"].append(result.verdict == "REFUTED")
        seen["naive Pearson p <= .05, per run"].append((result.descriptive["p"] <= 0.05).mean())
        seen["mean Pearson r"].append(result.descriptive["r"].mean())
        if result.lag:
            seen["lag p <= .05"].append(result.lag.pvalue <= 0.05)
            seen["lag mean"].append(result.lag.mean)
            seen["lag within 10 +- 1"].append(abs(result.lag.mean - 10) <= 1)
        if kind in MEDIATION:
            verdict = mediate(frame, "Q", rivals=["loss", "gnorm"], x="ece", y="lam").verdict
            seen["mediation SUPPORTED"].append(verdict == "SUPPORTED")
            seen["mediation REFUTED"].append(verdict == "REFUTED")
        if kind in EXPONENTS:
            found = exponents(frame, "ece", "lam", "Q")
            for slope, name in zip(found.slopes, ("alpha_E = 1", "alpha_lambda = 1", "shared exponent"), strict=True):
                seen[f"{name} p <= .05"].append(slope.pvalue <= 0.05)
                seen[f"{name} REFUTED"].append(slope.outcome == "REFUTED")
                seen[f"{name} SUPPORTED"].append(slope.outcome == "SUPPORTED")
    return {name: float(np.mean(values)) for name, values in seen.items()}


REQUIRED = [
    *[(k, "coupling p <= .05", "<=", 0.05, 2) for k in (*NULLS, "G1S")],
    *[(k, "coupling SUPPORTED", "<=", 0.04, 0) for k in (*NULLS, "G1S")],
    ("G1", "coupling p <= .05", ">=", 0.95, 0),
    ("G1W", "coupling p <= .05", ">=", 0.95, 0),
    ("G1", "coupling SUPPORTED", ">=", 0.95, 0),
    ("G1W", "coupling SUPPORTED", ">=", 0.75, 0),
    ("G5", "coupling REFUTED", ">=", 0.95, 0),
    ("G0D", "coupling REFUTED", ">=", 0.75, 0),
    ("G1S", "coupling REFUTED", "<=", 0.03, 0),
    ("G1", "mediation SUPPORTED", ">=", 0.85, 0),
    *[(k, "mediation SUPPORTED", "<=", 0.02, 0) for k in ("G2", "G3", "GE")],
    *[(k, "mediation REFUTED", ">=", 0.95, 0) for k in ("G2", "G3", "GE")],
    ("G1", "mediation REFUTED", "<=", 0.03, 0),
    ("G1", "alpha_E = 1 p <= .05", "<=", 0.07, 2),
    ("G1", "alpha_lambda = 1 p <= .05", "<=", 0.07, 2),
    ("G1", "shared exponent p <= .05", "<=", 0.07, 2),
    ("G6", "alpha_lambda = 1 REFUTED", ">=", 0.95, 0),
    ("G6", "shared exponent REFUTED", ">=", 0.95, 0),
    ("G4", "alpha_lambda = 1 REFUTED", ">=", 0.85, 0),
    ("G4", "shared exponent REFUTED", ">=", 0.85, 0),
    ("G7", "lag within 10 +- 1", ">=", 0.95, 0),
    ("G1", "lag p <= .05", "<=", 0.05, 0),
    ("G0", "naive Pearson p <= .05, per run", ">=", 0.95, 0),
]
"""Kind, rate, direction, bound, and how many Monte Carlo standard errors are added to it."""


def main(studies: int, first: int, kinds: list[str]) -> None:
    """Print every rate of each kind, then what the protocol requires of them."""
    table = {}
    for kind in kinds:
        start = time.perf_counter()
        table[kind] = rates(kind, studies, first)
        print(f"{kind} ({studies} studies, {time.perf_counter() - start:.0f} s)", flush=True)
        for name, value in table[kind].items():
            print(f"    {name:34s} {value:6.3f}", flush=True)
    print("\nrequired")
    for kind, name, sign, bound, errors in REQUIRED:
        if kind in table:
            limit = bound + errors * sqrt(bound * (1 - bound) / studies)
            value = table[kind][name]
            met = value <= limit if sign == "<=" else value >= limit
            print(f"    {kind:4s} {name:34s} {value:6.3f} {sign} {limit:.3f}  {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    count = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else 400
    seed = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else 0
    main(count, seed, arguments or [kind for kind in (*NULLS, *COUPLED) if kind in {*COUPLING, *MEDIATION}])
