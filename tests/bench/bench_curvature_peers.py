"""The sharpness tracker beside the ways in which others track lambda_max, step by step along gradient descent.

The segment: the 3072-200-200-10 tanh network, cross-entropy, 2,000 CIFAR-10 images, gradient descent at eta 0.05, steps
200 to 259, through the edge of stability. Every method starts each step from what it found at the step before. One
thread, one process, methods in turn at every step; costs are in training steps (forward and backward over the same
images, median of those timed between the methods), in processor time. The pass and the gradient that a step makes
anyway are counted for no method that uses them. Errors are against float64, each value against its own matrix.

Set MARGINTAIL_DATA to the folder that holds cifar10-jpeg; about ten minutes, most of it the peers':

    OMP_NUM_THREADS=1 python -m tests.bench.bench_curvature_peers
    OMP_NUM_THREADS=1 python -m tests.bench.bench_curvature_peers --seed 2 --steps 20
    OMP_NUM_THREADS=1 python -m tests.bench.bench_curvature_peers --eoss ../edge-of-stochastic-stability

The last also measures with that repository's own files. What the methods are is told in ``curvature_trackers.py``.
"""

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from runners.curvature import GaussNewton, hessian_top
from runners.curvature.bench import clock
from runners.losses import LOSSES
from runners.models import MODELS
from tests.bench.bench_curvature import images, truth
from tests.bench.curvature_trackers import Arpack, EossCheckout, Method, Point, trackers

ETA = 0.05
BASES = (4, 5, 6, 8, 10)
BASIS_TRIAL = 10


def gauss_newton_truth(model: nn.Module, x: Tensor, seed: int) -> float:
    """lambda_max of the Gauss-Newton matrix in float64, from random vectors; ``x`` in float64."""
    matrix = GaussNewton(copy.deepcopy(model).double(), x)
    if matrix.perceptron is not None:
        return truth(model, x, seed)
    return float(matrix.top(tol=1e-4, seed=seed)[0][0])


class HessianTruth:
    """The Hessian's lambda_max in float64, from the last vector and a random one, to a relative residual of 3e-4."""

    def __init__(self) -> None:
        self._vector: Tensor | None = None
        self._loss = LOSSES.build({"name": "ce"}, "loss")

    def at(self, model: nn.Module, x: Tensor, y: Tensor) -> float:
        """The eigenvalue at the network's present parameters; ``x`` in float64."""
        start = None
        if self._vector is not None:
            noise = torch.randn(len(self._vector), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            start = torch.stack([self._vector, noise.to(x)], 1)
        values, vectors, _ = hessian_top(
            copy.deepcopy(model).double(), x, y, self._loss, k=1, tol=3e-4, seed=1, start=start
        )
        self._vector = vectors[:, 0]
        return float(values[0])


def descend(model: nn.Module, gradient: Sequence[Tensor], lr: float = ETA) -> None:
    """One step of gradient descent."""
    with torch.no_grad():
        for p, slope in zip(model.parameters(), gradient, strict=True):
            p.sub_(slope, alpha=lr)


def best_basis(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """The number of basis vectors with which `Arpack` is cheapest over a few steps."""
    costs = {}
    for basis in BASES:
        trial, method = copy.deepcopy(model), Arpack(basis)
        spent, products = 0.0, 0.0
        for step in range(BASIS_TRIAL):
            point = Point.of(trial, x, y)
            began = clock(x)
            found = method.measure(point)
            if step:
                spent, products = spent + clock(x) - began, products + found[1]
            descend(trial, point.gradient)
        costs[basis] = spent
        print(f"  eigsh ncv {basis}: {products / (BASIS_TRIAL - 1):.1f} products a step", flush=True)
    return min(costs, key=costs.__getitem__)


def trail(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    methods: dict[str, Method],
    steps: int,
    *,
    audit: int = 1,
    lr: float = ETA,
) -> str:
    """Measure every method along gradient descent from the network's present parameters, which it changes.

    Args:
        model: the network, in the mode to evaluate in.
        x: inputs [n, ...].
        y: labels [n].
        methods: by name; the first is the one that the others are compared with.
        steps: steps counted, after one from which every method starts.
        audit: every so many steps the values are compared with float64.
        lr: of the descent.
    """
    exact, hessian = x.double(), HessianTruth()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
    base, truths = [], []
    for step in range(steps + 1):
        for _ in range(2):
            began = clock(x)
            point = Point.of(model, x, y)
            base.append(clock(x) - began)
        measured = {}
        for name, method in methods.items():
            began = clock(x)
            value, products = method.tracker.measure(point)
            measured[name] = (value, products, clock(x) - began)
        if step:
            right = {"G": float("nan"), "H": float("nan")}
            if step % audit == 0:
                right["G"] = gauss_newton_truth(model, exact, seed=7 * step)
                if any(method.matrix == "H" for method in methods.values()):
                    right["H"] = hessian.at(model, exact, y)
                truths.append(right["G"])
            for name, (value, products, spent) in measured.items():
                found[name].append((spent, products, abs(value / right[methods[name].matrix] - 1)))
        descend(model, point.gradient, lr)
    unit = float(np.median(base))
    return (
        f"{steps} steps, lambda_max(G) {min(truths):.1f} to {max(truths):.1f}; a training step is "
        f"{unit * 1e3:.2f} ms\n" + render(found, {name: method.matrix for name, method in methods.items()}, unit)
    )


def segment(seed: int, first: int, steps: int, n: int, checkout: Path | None) -> None:
    """Measure every method along the segment, and print the table."""
    x, y = images(n)
    torch.manual_seed(seed)
    model = MODELS.build({"name": "mlp"}, "model").build((x.shape[1],), 10)
    for _ in range(first - 1):
        descend(model, Point.of(model, x, y).gradient)
    basis = best_basis(model, x, y)
    methods = trackers() | {f"curvlinops + eigsh, ncv {basis}": Method(Arpack(basis), "G")}
    if checkout is not None:
        methods["EoSS, its own files"] = Method(EossCheckout(checkout), "H")
    print(f"seed {seed}, n {n}, steps {first} to {first + steps - 1}")
    print(trail(model, x, y, methods, steps), flush=True)


def render(found: dict[str, list[tuple[float, float, float]]], matrices: dict[str, str], unit: float) -> str:
    """The table; the first method is the one that the others are compared with.

    Args:
        found: seconds, products and relative error (NaN where it was not audited) of each step, for each method.
        matrices: the matrix each measures.
        unit: seconds of a training step.
    """
    lines = [
        f"{'method':33s} matrix {'products (max)':>15s} {'steps: mean':>11s} {'median':>7s} {'max':>6s} {'ms':>8s} "
        f"{'x ours':>7s} {'error max':>9s} {'> 1e-3':>6s}"
    ]
    ours = None
    for name, rows in found.items():
        spent, products, errors = np.array(rows).T
        errors, cost = errors[~np.isnan(errors)], spent / unit
        ours = ours or cost.mean()
        lines.append(
            f"{name:33s} {matrices[name]:>6s} {f'{products.mean():.1f} ({products.max():.0f})':>15s} "
            f"{cost.mean():11.2f} {np.median(cost):7.2f} {cost.max():6.1f} {spent.mean() * 1e3:8.2f} "
            f"{cost.mean() / ours:7.1f} {errors.max():9.1e} {f'{(errors > 1e-3).sum()}/{len(errors)}':>6s}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=200)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--eoss", type=Path, help="a checkout of edge-of-stochastic-stability")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    segment(chosen.seed, chosen.first, chosen.steps, chosen.n, chosen.eoss)


if __name__ == "__main__":
    main()
