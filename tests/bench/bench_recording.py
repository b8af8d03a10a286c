"""What recording costs: a recorded run over the bare torch loop, on the paper's MLP.

    python -m tests.bench.bench_recording --train 5000 --test 1000

Both train by full-batch gradient descent on the same data in one process and one thread, in turn; the record holds
every scalar and per-sample probe at every step, and no curvature. Two bare loops are timed: one that only trains, and
one that also evaluates the test loss and accuracy at each step, as people write it. Printed: medians of the ratio over
rounds.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from runners.loop import train
from runners.spec import RunSpec


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def bare(spec: RunSpec, evaluates: bool) -> float:
    """Seconds of the loop a reader would write."""
    data = spec.dataset.load()
    x, y = data.splits["train"].x, data.splits["train"].y
    u, v = data.splits["test"].x, data.splits["test"].y
    torch.manual_seed(spec.seed)
    model = spec.model.build(data.input_shape, data.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.optimizer.lr)
    start = time.perf_counter()
    for _ in range(spec.steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
        if evaluates:
            with torch.no_grad():
                logits = model(u)
                cross_entropy(logits, v).item()
                (logits.argmax(1) == v).float().mean().item()
    return time.perf_counter() - start


def recorded(spec: RunSpec) -> float:
    """Seconds from the first step to the finished record on disk."""
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        train(spec, folder, report=lambda step, recorder: marks.append(time.perf_counter()))
        return time.perf_counter() - marks[0]


def main() -> None:
    """Print the ratios."""
    wanted = arguments()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.npz"
        sizes = {"train": wanted.train, "test": wanted.test}
        np.savez(
            path,
            **{f"x_{name}": rng.standard_normal((n, 3, 32, 32), dtype=np.float32) for name, n in sizes.items()},
            **{f"y_{name}": rng.permutation(np.arange(n) % 10) for name, n in sizes.items()},
        )
        spec = RunSpec.from_dict(
            {
                "dataset": {"name": "npz", "path": str(path)},
                "optimizer": {"name": "gd", "lr": 0.05},
                "steps": wanted.steps,
                "probes": {"examples": {}, "norms": {}},
            }
        )
        rows = [(recorded(spec), bare(spec, True), bare(spec, False)) for _ in range(wanted.rounds + 1)][1:]
    evaluating = statistics.median(ours / other for ours, other, _ in rows)
    training = statistics.median(ours / other for ours, _, other in rows)
    print(f"n = {wanted.train} + {wanted.test}, {wanted.steps} steps, {wanted.rounds} rounds, one thread")
    print(f"recorded run / bare loop that trains:               {training:.2f}")
    print(f"recorded run / bare loop that trains and evaluates: {evaluating:.2f}")


if __name__ == "__main__":
    main()
