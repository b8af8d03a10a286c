"""Time and memory of couple and mediate on tables of one study; one thread.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_coupling

Asked for: 12 runs x 300 steps in less than 0.5 s; 60 runs x 10,000 steps in less than 60 s and 1 GB.
"""

import resource
import time

import numpy as np

from analysis.coupling import couple
from analysis.mediation import mediate
from tests.generators import LRS, generate


def measure(lrs: tuple[float, ...], steps: int, repeats: int) -> None:
    """Print the median time of couple (with lags) followed by mediate."""
    frame = generate("G1", np.random.default_rng(0), T=steps, lrs=lrs).frame()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        coupling = couple(frame, "ece", "lam", lags=20)
        mediation = mediate(frame, "Q", rivals=["loss", "gnorm"], x="ece", y="lam")
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{3 * len(lrs)} runs x {steps} steps: {np.median(seconds):.3f} s, process peak {peak:.2f} GB "
        f"({coupling.verdict}, {mediation.verdict})"
    )


if __name__ == "__main__":
    measure(LRS, 300, 5)
    measure(tuple(np.geomspace(0.001, 1, 20)), 10_000, 1)
