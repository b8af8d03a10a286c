"""Post-hoc recalibration on real logits: test ECE of each method, fitted on few validation images.

    MARGINTAIL_DATA=folder OMP_NUM_THREADS=1 python -m tests.bench.bench_recalibration

MARGINTAIL_DATA holds ``cifar10-jpeg/``. A small CNN is trained on a few thousand images until it is overconfident; then
each method is fitted on calibration sets drawn without replacement from the validation split, and reported on the test
split. Printed: a markdown table of the mean over draws with its 95% t interval, and one line of JSON. The interval is
over the draws of the calibration set; "raw" has the bootstrap interval over test images instead. The test ECE of a
calibrated model with the same confidences, the floor that sampling alone leaves, is printed too.
"""

import argparse
import json
import os
import time
from typing import Any

import numpy as np
import torch
from scipy.stats import t
from torch.nn.functional import cross_entropy

from analysis import calibration as cal
from analysis.recalibration import fit
from runners.datasets.parquet import Parquet
from runners.models.cnn import Cnn

METHODS: list[dict[str, Any]] = [
    {"name": "temperature"},
    {"name": "isotonic"},
    {"name": "isotonic", "classes": "top_label"},
    {"name": "histogram"},
    {"name": "histogram", "classes": "top_label"},
    {"name": "vector"},
    {"name": "beta"},
    {"name": "beta", "classes": "top_label"},
    {"name": "smart"},
    {"name": "smart", "delta": 1e-3},
    {"name": "smart", "hidden": [16, 16]},
]
METRICS = ("ece", "smooth_ece", "nll", "accuracy")


def trained(given: argparse.Namespace) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Logits and labels of each split after training."""
    root = os.path.join(os.environ["MARGINTAIL_DATA"], "cifar10-jpeg")
    data = Parquet(root=root, train_size=given.train, validation_size=given.validation, test_size=given.test).load()
    torch.manual_seed(given.seed)
    model = Cnn(channels=(32, 64)).build(data.input_shape, data.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    x, y = data.splits["train"].x, data.splits["train"].y
    start = time.perf_counter()
    for epoch in range(given.epochs):
        for batch in torch.randperm(len(y)).split(64):
            optimizer.zero_grad()
            loss = cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: last loss {loss.item():.3f}, {time.perf_counter() - start:.0f} s", flush=True)
    with torch.no_grad():
        return {
            name: (torch.cat([model(part) for part in split.x.split(500)]).numpy(), split.y.numpy())
            for name, split in data.splits.items()
        }


def measures(values: np.ndarray, labels: np.ndarray, from_logits: bool) -> dict[str, float]:
    scores = cal.top_label(values, labels, from_logits=from_logits)
    return {
        "ece": float(cal.ece(*scores)),
        "smooth_ece": float(cal.smooth_ece(*scores)),
        "nll": float(cal.nll(values, labels, from_logits=from_logits)),
        "accuracy": float(cal.accuracy(scores[1])),
    }


def mean_and_half_width(values: list[float]) -> tuple[float, float]:
    n = len(values)
    if not np.isfinite(values).all():
        return float("inf"), float("nan")
    return float(np.mean(values)), float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5)


def floor(confidence: np.ndarray, draws: int = 200) -> float:
    """Mean ECE of labels drawn from the confidences themselves."""
    uniform = np.random.default_rng(0).uniform(size=(draws, len(confidence)))
    return float(cal.ece(np.broadcast_to(confidence, uniform.shape), uniform < confidence).mean())


def compare(splits: dict[str, tuple[np.ndarray, np.ndarray]], sizes: list[int], draws: int) -> list[dict[str, Any]]:
    logits, labels = splits["test"]
    raw = measures(logits, labels, from_logits=True)
    ends = cal.bootstrap(cal.ece, *cal.top_label(logits, labels, from_logits=True), within=(0, 1))
    rows: list[dict[str, Any]] = [{"method": "raw", "n": 0, **raw, "ece_half_width": float(ends.high - ends.low) / 2}]
    z, y = splits["validation"]
    for size in sizes:
        found: dict[str, list[dict[str, float]]] = {}
        for draw in range(draws):
            chosen = np.random.default_rng((size, draw)).permutation(len(y))[:size]
            for table in METHODS:
                name = " ".join(str(value) for value in table.values())
                calibrator = fit(table, z[chosen], y[chosen])
                found.setdefault(name, []).append(measures(calibrator(logits), labels, from_logits=False))
        for name, each in found.items():
            row: dict[str, Any] = {"method": name, "n": size}
            for metric in METRICS:
                row[metric], row[f"{metric}_half_width"] = mean_and_half_width([m[metric] for m in each])
            rows.append(row)
    return rows


def _half_width(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f" ± {value:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--validation", type=int, default=3000)
    parser.add_argument("--test", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    splits = trained(given)
    for name, (logits, labels) in splits.items():
        confidence, correct = cal.top_label(logits, labels, from_logits=True)
        print(f"{name}: accuracy {correct.mean():.3f}, mean confidence {confidence.mean():.3f}")
    rows = compare(splits, given.sizes, given.draws)
    logits, labels = splits["test"]
    scaled = fit("temperature", *splits["validation"])(logits)
    print(f"floor of the test ECE: {floor(cal.top_label(scaled, labels, from_logits=False)[0]):.4f}")
    print("\nCIFAR-10 (JPEG)\n| n | method | test ECE | smooth ECE | NLL | accuracy |\n|---|---|---|---|---|---|")
    for row in rows:
        cells = [f"{row[m]:.4f}{_half_width(row.get(f'{m}_half_width'))}" for m in METRICS]
        print(f"| {row['n']} | {row['method']} | {' | '.join(cells)} |")
    print(json.dumps({"settings": vars(given), "rows": rows}))


if __name__ == "__main__":
    main()
