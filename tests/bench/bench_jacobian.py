"""Per-sample Jacobian norms of the CIFAR perceptron against a training step: python -m tests.bench.bench_jacobian.

Both are timed in turn in one process on the same 1,000 inputs; norms are checked against Jacobians that are formed.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from runners.curvature import jacobian_norms, run_forward

SAMPLES, CHECKED, ROUNDS = 1000, 20, 9


def main() -> None:
    """Print the ratio of the times and the largest relative error."""
    torch.manual_seed(0)
    sizes = (3072, 200, 200, 10)
    layers = [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.Tanh())]
    model = nn.Sequential(nn.Flatten(), *layers[:-1])
    x, y = torch.randn(SAMPLES, 3, 32, 32), torch.randint(10, (SAMPLES,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    seconds: dict[str, list[float]] = {"step": [], "norms": [], "norms, forward shared": []}
    for _ in range(ROUNDS):
        seconds["step"].append(timed(step))
        seconds["norms"].append(timed(lambda: jacobian_norms(model, x)))
        shared = partial(jacobian_norms, model, x, forward=run_forward(model, x))
        seconds["norms, forward shared"].append(timed(shared))
    best = {name: sorted(times)[ROUNDS // 2] for name, times in seconds.items()}
    for name, value in best.items():
        print(f"{name:22s} {1e3 * value:8.2f} ms  {value / best['step']:.2f} steps (median of {ROUNDS})")
    print(f"largest relative error of {CHECKED} norms, float64: {error(model.double(), x[:CHECKED].double()):.1e}")


def timed(action: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def error(model: nn.Module, x: torch.Tensor) -> float:
    """Against the largest singular value of each sample's explicit Jacobian."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    jacobian = vmap(jacrev(lambda p, one: functional_call(model, p, (one[None],))[0]), (None, 0))(parameters, x)
    flat = torch.cat([part.flatten(2) for part in jacobian.values()], dim=2)
    expected = torch.linalg.svdvals(flat)[:, 0]
    return float(((jacobian_norms(model, x) - expected) / expected).abs().max())


if __name__ == "__main__":
    main()
