"""How fast the calibration metrics are, beside what people use: torchmetrics in a loop, the double sum, relplot.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_calibration

Each pair is timed in turn in one process and one thread; printed are medians over rounds, the ratio, and how far the
two values are apart. The inputs are random confidences with 5,000 samples a step, as a recorded trajectory has them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import relplot
import torch
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from analysis import calibration as cal
from analysis.recalibration import fit
from tests.analysis.calibration_cases import kernel_form, random_logits, random_samples

STEPS = "1,000 steps x 5,000"


def seconds(function: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """Median time of a call, after one that is not counted, and what it returned."""
    function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        found = function()
        times.append(time.perf_counter() - start)
    return statistics.median(times), found


def row(what: str, ours: tuple[float, Any], theirs: tuple[float, Any], scale: float = 1.0) -> None:
    """Print one comparison; ``scale`` is how many times the work of theirs ours did."""
    apart = abs(float(np.mean(ours[1])) - float(np.mean(theirs[1])))
    ratio = theirs[0] * scale / ours[0]
    print(f"| {what} | {1e3 * ours[0]:.2f} | {1e3 * theirs[0] * scale:.1f} | {ratio:.1f} | {apart:.1e} |", flush=True)


def ece_of_a_trajectory(rounds: int, looped: int) -> None:
    confidence, correct = random_samples(5000, shape=(1000,))
    took, values = seconds(lambda: cal.ece(confidence, correct), rounds)
    scores, outcomes = torch.tensor(confidence[:looped]), torch.tensor(correct[:looped]).long()

    def loop() -> list[float]:
        pairs = zip(scores, outcomes, strict=True)
        return [binary_calibration_error(score, outcome, n_bins=15).item() for score, outcome in pairs]

    row(f"ECE, {STEPS}: torchmetrics, binary", (took, values[:looped]), seconds(loop, rounds), 1000 / looped)

    # Ten classes whose top label has that confidence and correctness, as torchmetrics is used on a classifier.
    high = np.maximum(confidence[:looped, :, None], 0.1)
    classes = np.where(np.arange(10) == 0, high, (1 - high) / 9)
    probabilities, labels = torch.tensor(classes), torch.tensor(~correct[:looped]).long()

    def loop_over_classes() -> list[float]:
        pairs = zip(probabilities, labels, strict=True)
        return [multiclass_calibration_error(p, y, 10, n_bins=15).item() for p, y in pairs]

    theirs = seconds(loop_over_classes, rounds)
    row(f"ECE, {STEPS}: torchmetrics, 10 classes", (took, values[:looped]), theirs, 1000 / looped)
    took, values = seconds(lambda: [cal.ece(*cal.top_label(classes, labels, from_logits=False))], rounds)
    row(f"ECE and its top label, {STEPS}: the same", (took * 1000 / looped, values), theirs, 1000 / looped)


def kernel_error(rounds: int) -> None:
    confidence, correct = random_samples(50_000)
    ours = seconds(lambda: cal.kce(confidence, correct, squared=True), rounds)

    residual = correct - confidence

    def tenth_of_the_double_sum() -> float:
        parts = np.split(np.arange(5000), 50)
        distances = (np.abs(confidence[part, None] - confidence[None, :]) for part in parts)
        return sum(residual[p] @ (np.exp(-d / 0.4) @ residual) for p, d in zip(parts, distances, strict=True))

    theirs = seconds(tenth_of_the_double_sum, 1)
    row("KCE, n = 50,000: double sum (a tenth of it, times ten)", ours, (theirs[0], ours[1]), 10)
    confidence, correct = random_samples(2000)
    ours = seconds(lambda: cal.kce(confidence, correct, squared=True), rounds)
    theirs = seconds(lambda: kernel_form(confidence, correct - confidence, 0.4) / 2000**2, rounds)
    row("KCE, n = 2,000: double sum", ours, theirs)


def smooth_error(rounds: int) -> None:
    for n in (1000, 5000, 50_000):
        confidence, correct = random_samples(n)
        outcome = correct.astype(float)
        ours = seconds(lambda c=confidence, a=correct: cal.smooth_ece(c, a), rounds)
        theirs = seconds(lambda c=confidence, a=outcome: relplot.smECE(c, a), rounds)
        row(f"smooth ECE, n = {n:,}: relplot", ours, theirs)


def fits(rounds: int) -> None:
    logits, labels = random_logits(1000, classes=10)
    print("\n| fit on 1,000 x 10 logits | ms |\n|---|---|")
    for method in ("temperature", "histogram", "isotonic", "platt", "beta", "vector", "smart"):
        took, _ = seconds(lambda name=method: fit(name, logits, labels), 1 if method == "smart" else rounds)
        print(f"| {method} | {1e3 * took:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--looped", type=int, default=100, help="steps of the torchmetrics loop, scaled to 1,000")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| what: beside | ours, ms | theirs, ms | theirs / ours | apart |\n|---|---|---|---|---|")
    ece_of_a_trajectory(given.rounds, given.looped)
    kernel_error(given.rounds)
    smooth_error(given.rounds)
    fits(given.rounds)


if __name__ == "__main__":
    main()
