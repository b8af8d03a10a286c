"""Accuracy and cost of the sharpness tracker along trajectories, and cost of products against size.

One thread, one process. Costs are in training steps (forward and backward over the same images, median of steps timed
between the measurements), both in processor time, which other work on the machine disturbs least. The data is CIFAR-10
as JPEG: set MARGINTAIL_DATA to the folder that holds cifar10-jpeg.

    python -m tests.bench.bench_curvature trajectory gd_0.05 --seed 1 --first 150 --steps 200
    python -m tests.bench.bench_curvature peers
    python -m tests.bench.bench_curvature growth
"""

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from runners.curvature import GaussNewton, SharpnessTracker, run_forward
from runners.curvature.bench import clock, compare, render
from runners.curvature.gauss_newton import Linearization, half, half_transposed
from runners.curvature.inputs import principal_inputs
from runners.curvature.krylov import search, start_vectors
from runners.curvature.output import OutputRoot
from runners.datasets import DATASETS
from runners.losses import LOSSES
from runners.models import MODELS
from runners.optimizers import OPTIMIZERS, Objective

OPTIMIZERS_AT_THE_EDGE = {
    "gd_0.05": {"name": "gd", "lr": 0.05},
    "gd_0.2": {"name": "gd", "lr": 0.2},
    "sgd": {"name": "sgd", "lr": 0.1, "batch_size": 100},
    "adamw": {"name": "adamw", "lr": 0.001, "batch_size": 100},
    "muon": {"name": "muon", "lr": 0.01, "batch_size": 100},
    "sam": {"name": "sam", "lr": 0.1, "batch_size": 100},
    "bulk_sgd": {"name": "bulk_sgd", "lr": 2 / 30, "batch_size": 100, "hessian_samples": 300, "tol": 1e-2},
}


def images(n: int) -> tuple[Tensor, Tensor]:
    """n standardised training images, flat, and their labels."""
    table = {"name": "parquet", "root": "$MARGINTAIL_DATA/cifar10-jpeg", "train_size": n, "test_size": 10}
    train = DATASETS.build(table, "dataset").load().splits["train"]
    return train.x.flatten(1), train.y


def seconds(calls: Sequence[Callable[[], object]], x: Tensor, repeats: int = 9) -> list[float]:
    """The median time of each call, the calls in turn, after one round to warm up."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats + 1):
        for call, spent in zip(calls, times, strict=True):
            started = clock(x)
            call()
            spent.append(clock(x) - started)
    return [float(np.median(spent[1:])) for spent in times]


def training_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Forward and backward over all samples."""
    return lambda: torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))


def product(linearization: Linearization, root: OutputRoot) -> Callable[[Tensor], Tensor]:
    """Rows [k, d] -> the matrix applied to each."""
    return lambda rows: half_transposed(linearization, root, half(linearization, root, rows))


def truth(model: nn.Module, x: Tensor, seed: int) -> float:
    """lambda_max in float64, searched from random vectors, to a relative residual of 1e-4 in the whole space.

    The search runs on 400 input directions first, then on all of them.
    """
    matrix = GaussNewton(copy.deepcopy(model).double(), x)
    inputs = principal_inputs(x, 400, coordinates="inputs")
    assert matrix.perceptron is not None
    reduced = matrix.perceptron.with_inputs([inputs.coordinates])
    with torch.no_grad():
        found = search(
            product(reduced, matrix.root),
            start_vectors(2, reduced.size, matrix.like, seed),
            2,
            1e-3,
            least=12,
        )
        rank = inputs.basis.shape[1]
        width = next(iter(model.parameters())).shape[0]
        first = found.vectors[:, : width * rank].reshape(-1, width, rank) @ inputs.basis.T
        start = torch.cat([first.flatten(1), found.vectors[:, width * rank :]], 1)
        found = search(matrix._rows, start, 1, 1e-4)
    return float(found.values[0])


def trajectory(name: str, seed: int, first: int, steps: int, audit: int, n: int) -> None:
    """Track every step, and compare each ``audit``-th with the float64 truth."""
    x, y = images(n)
    exact = x.double()
    torch.manual_seed(seed)
    model = MODELS.build({"name": "mlp"}, "model").build((x.shape[1],), 10)
    loss = LOSSES.build({"name": "ce"}, "loss")
    settings = OPTIMIZERS.build(OPTIMIZERS_AT_THE_EDGE[name], "optimizer")
    optimizer = settings.build(model.parameters(), Objective(model, loss, x, y))
    generator = torch.Generator().manual_seed(1000 + seed)
    tracker = SharpnessTracker()
    errors, costs, products, guards, residuals, values, base = [], [], [], 0, [], [], []
    started = time.perf_counter()
    for step in range(first + steps):
        size = settings.batch_size
        rows = slice(None) if size is None else torch.randperm(n, generator=generator)[:size]
        if step >= first:
            began = time.process_time()
            forward = run_forward(model, x, grad=True)
            gradient = torch.autograd.grad(cross_entropy(forward.logits, y), list(model.parameters()))
            base.append(time.process_time() - began)
            began = time.process_time()
            reading = tracker.update(model, x, "ce", forward=forward, gradient=gradient)
            spent = time.process_time() - began
            if step > first:
                costs.append(spent)
                products.append(reading.products)
                guards += reading.guard
                residuals.append(reading.residual / reading.value)
            values.append(reading.value)
            if (step - first) % audit == 0:
                errors.append(1 - reading.value / truth(model, exact, seed=7 * step + seed))
        if time.perf_counter() - started > 500:
            print("out of time at step", step)
            break

        def closure(rows: slice | Tensor = rows) -> Tensor:
            optimizer.zero_grad()
            value = loss(model, x[rows], y[rows])
            value.backward()
            return value.detach()

        optimizer.step(closure)
    cost = np.array(costs) / np.median(base)
    error = np.abs(errors)
    print(
        f"{name} seed {seed} n {n} steps {first}..{first + len(values) - 1} "
        f"lambda {min(values):.1f}..{max(values):.1f} | "
        f"audited {len(error)}: error median {np.median(error):.1e} 90% {np.quantile(error, 0.9):.1e} "
        f"max {error.max():.1e}, > 2e-4: {(error > 2e-4).sum()}, misses > 1e-3: {(error > 1e-3).sum()} | "
        f"products {np.mean(products):.2f} (max {max(products)}) | cost in steps of {np.median(base) * 1e3:.0f} ms: "
        f"mean {cost.mean():.2f} median {np.median(cost):.2f} 90% {np.quantile(cost, 0.9):.2f} max {cost.max():.2f} | "
        f"guards {guards} | residual / value max {max(residuals):.1e}",
        flush=True,
    )


def growth() -> None:
    """Cost of one Gauss-Newton product, in steps of the same size, against samples and width; and of ResNet-20."""
    x, y = images(5000)
    for n, width in [
        (500, 200),
        (1000, 200),
        (2000, 200),
        (5000, 200),
        (2000, 100),
        (2000, 400),
        (2000, 800),
    ]:
        model = MODELS.build({"name": "mlp", "hidden": (width, width)}, "model").build((x.shape[1],), 10)
        _product_cost(f"mlp {width}-{width}, n = {n}", model, x[:n].clone(), y[:n])
    model = MODELS.build({"name": "resnet20"}, "model").build((3, 32, 32), 10).eval()
    for n in (128, 256):
        _product_cost(f"resnet20, n = {n}", model, x[:n].view(n, 3, 32, 32), y[:n])


def _product_cost(label: str, model: nn.Module, x: Tensor, y: Tensor) -> None:
    matrix = GaussNewton(model, x)
    vector = torch.randn(matrix.size)
    for _ in range(4):
        matrix.matvec(vector)
    base, cost = seconds([training_step(model, x, y), lambda: matrix.matvec(vector)], x)
    line = f"{label}: step {base * 1e3:.1f} ms, product {cost * 1e3:.1f} ms = {cost / base:.2f} steps"
    if matrix.perceptron is not None:
        for rank in (100, 200):
            reduced = matrix.perceptron.with_inputs([principal_inputs(x, rank).coordinates])
            rows = torch.randn(1, reduced.size)
            spent = seconds([partial(product(reduced, matrix.root), rows)], x)[0]
            line += f", on {rank} input directions {spent / base:.2f}"
    print(line, flush=True)


def peers() -> None:
    """The table of `margintail bench curvature` at initialisation and after 200 steps of GD."""
    x, y = images(2000)
    torch.manual_seed(1)
    model = MODELS.build({"name": "mlp"}, "model").build((x.shape[1],), 10)
    loss = LOSSES.build({"name": "ce"}, "loss")
    print("at initialisation\n" + render(compare(model, x, y, loss)), flush=True)
    descent = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(200):
        descent.zero_grad()
        loss(model, x, y).backward()
        descent.step()
    print("after 200 steps of GD, lr 0.05\n" + render(compare(model, x, y, loss, lr=0.05)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("trajectory")
    one.add_argument("optimizer", choices=sorted(OPTIMIZERS_AT_THE_EDGE))
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--first", type=int, default=150)
    one.add_argument("--steps", type=int, default=200)
    one.add_argument("--audit", type=int, default=1)
    one.add_argument("--n", type=int, default=2000)
    commands.add_parser("growth")
    commands.add_parser("peers")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.command == "trajectory":
        trajectory(chosen.optimizer, chosen.seed, chosen.first, chosen.steps, chosen.audit, chosen.n)
    else:
        {"growth": growth, "peers": peers}[chosen.command]()


if __name__ == "__main__":
    main()
