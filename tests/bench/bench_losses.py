"""What a step of CE, Flat, Rob and CalMO costs: over the passes it needs, and over the torch loop people write.

    python -m tests.bench.bench_losses --threads 1

ResNet-20, batches of 128 images of 32x32, float32, random images (times do not depend on them); all in one process
and in turn. Printed are medians over rounds, of processor time on one thread and of elapsed time on more.

A pass is timed bare on the same network, in the same order of memory: the forward pass, the backward pass to the
parameters, that to the inputs, and the backward pass through the squared input gradient, which ends with the clean
pass's backward to the parameters. With s steps of search the least passes are

    CE     forward, to parameters
    Flat   forward, to inputs, double
    Rob    CE, and s - 1 times forward, s times to inputs, forward, to parameters
    CalMO  Rob with Flat's passes in place of CE's

The double backward is timed twice, as torch makes it and as `runners.losses._twice` does; so there are two floors.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from runners.arithmetic import arithmetic
from runners.loop import Training
from runners.losses._twice import TwiceDifferentiated
from runners.losses.calmo import true_margin
from runners.spec import RunSpec

STEPS = 3
METHODS = {
    "CE": {"name": "ce"},
    "Flat": {"name": "calmo", "lambda_r": 0.0},
    "Rob": {"name": "calmo", "lambda_s": 0.0, "steps": STEPS},
    "CalMO": {"name": "calmo", "steps": STEPS},
}


def spec_of(method: str, images: Path, threads: int) -> RunSpec:
    """A run of the paper's shape on the images of a file."""
    return RunSpec.from_dict(
        {
            "dataset": {"name": "npz", "path": str(images)},
            "model": {"name": "resnet20"},
            "loss": METHODS[method],
            "optimizer": {"name": "sgd", "lr": 0.01, "batch_size": 128},
            "steps": 1,
            "threads": threads,
        }
    )


def write_images(path: Path, n: int = 2000) -> None:
    """Random images of bytes, and labels."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    y = generator.integers(0, 10, n)
    np.savez(path, x_train=x, y_train=y, x_test=x[:10], y_test=np.arange(10))


def passes(model: nn.Module, x: Tensor, y: Tensor, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of each pass, timed once."""
    spent: dict[str, float] = {}
    parameters = list(model.parameters())
    inputs = x.clone().requires_grad_()
    started = clock()
    value = cross_entropy(model(x), y)
    spent["forward"] = clock() - started
    started = clock()
    torch.autograd.grad(value, parameters)
    spent["to parameters"] = clock() - started
    value = cross_entropy(model(inputs), y)
    started = clock()
    torch.autograd.grad(value, inputs)
    spent["to inputs"] = clock() - started
    value = true_margin(model(inputs), y).sum()
    (slope,) = torch.autograd.grad(value, inputs, create_graph=True)
    penalty = slope.square().sum()
    started = clock()
    torch.autograd.grad(penalty, parameters, allow_unused=True)
    spent["double by torch"] = clock() - started
    own = TwiceDifferentiated()
    with own:
        logits = model(inputs)
    with own.inputs_only():
        (slope,) = torch.autograd.grad(true_margin(logits, y).sum(), inputs, create_graph=True)
    penalty = slope.square().sum()
    started = clock()
    torch.autograd.grad(penalty, parameters, allow_unused=True)
    spent["double by ours"] = clock() - started
    return spent


def floor(method: str, spent: dict[str, float], double: str) -> float:
    """Seconds of the passes that a method needs."""
    step = spent["forward"] + spent["to parameters"]
    clean = spent["forward"] + spent["to inputs"] + spent[double] if method in ("Flat", "CalMO") else step
    search = (STEPS - 1) * spent["forward"] + STEPS * spent["to inputs"]
    return clean + (search + step if method in ("Rob", "CalMO") else 0.0)


def plain(spec: RunSpec) -> Callable[[], None]:
    """A step of the torch loop people write."""
    data = spec.dataset.load()
    x, y = data.splits["train"].x, data.splits["train"].y
    torch.manual_seed(0)
    model = spec.model.build(data.input_shape, data.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.optimizer.lr)

    def step() -> None:
        batch = torch.randperm(len(y))[: spec.optimizer.batch_size]
        optimizer.zero_grad()
        value = cross_entropy(model(x[batch]), y[batch])
        value.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    chosen = parser.parse_args()
    clock = time.process_time if chosen.threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images.npz"
        write_images(images)
        specs = {method: spec_of(method, images, chosen.threads) for method in METHODS}
        with arithmetic(specs["CE"]):
            runs = {method: Training(spec) for method, spec in specs.items()}
            loop = plain(specs["CE"])
            measure(runs, loop, clock, chosen.rounds)


def measure(runs: dict[str, Training], loop: Callable[[], None], clock: Callable[[], float], rounds: int) -> None:
    """Time all in turn, and print the table."""
    bare = runs["CE"]
    x, y = bare.objective.x[:128], bare.objective.y[:128]
    seconds: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        spent = passes(bare.model, x, y, clock)
        for method, training in runs.items():
            started = clock()
            training.step(None)
            spent[method] = clock() - started
        started = clock()
        loop()
        spent["plain torch loop"] = clock() - started
        for name, value in spent.items() if turn else ():
            seconds.setdefault(name, []).append(value)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in median.items():
        print(f"{name:16s} {value * 1e3:8.1f} ms")
    print(f"\nCE over the plain torch loop: {_ratio(seconds['CE'], seconds['plain torch loop'])}")
    for method in METHODS:
        over = {
            double: median[method] / floor(method, median, double) for double in ("double by torch", "double by ours")
        }
        print(
            f"{method:6s} {median[method] / median['CE']:.2f} CE steps, over its floor "
            f"{over['double by ours']:.3f}, with torch's double backward {over['double by torch']:.3f}"
        )


def _ratio(ours: list[float], theirs: list[float]) -> str:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return f"{middle:.3f} (quartiles over rounds {low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
