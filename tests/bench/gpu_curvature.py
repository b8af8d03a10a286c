"""The curvature engine on a GPU, in one run: cost in training steps and in milliseconds, accuracy, memory.

    python -m tests.bench.gpu_curvature
    python -m tests.bench.gpu_curvature --smoke

The first needs a CUDA device with about 40 GB and some ten minutes; the second runs all of it on the CPU in seconds, at
sizes that say nothing about cost. Networks: the 3072-200-200-10 tanh perceptron on n = 5,000 and ResNet-20 (batch norm
in evaluation mode) on n = 2,048, of CIFAR-10 where MARGINTAIL_DATA names the folder of cifar10-jpeg, else of random
images with the same decay of singular values. For each of them:

1. the table of ``margintail bench curvature``, with seconds; peers that are not installed are named;
2. one product: whole, in chunks, on 100 input directions, with the peak of the GPU's memory;
3. TF32 off and on: error of a product and of the tracker's value against float64, and the cost;
4. the tracker along 100 steps of gradient descent, every tenth audited in float64, beside two published trackers.

At last, products of several networks in one batch. The GPU is waited for around everything that is timed.
"""

import argparse
import copy
import os
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runners.arithmetic import products_in
from runners.curvature import GaussNewton, SharpnessTracker
from runners.curvature.bench import compare, render
from runners.losses import LOSSES
from runners.models import MODELS
from tests.bench.bench_curvature import images, seconds, training_step
from tests.bench.bench_curvature_hardware import CLASSES, replicas
from tests.bench.bench_curvature_peers import trail
from tests.bench.curvature_trackers import Arpack, Method, trackers

RANK = 100


@dataclass(frozen=True)
class Case:
    """A network and how much of it to measure.

    Attributes:
        label: for the reader.
        model: a model's table.
        flat: inputs as rows of numbers, not as images.
        n: samples.
        chunk: of the products in chunks.
        steps: of gradient descent along which the trackers are followed.
        audit: every so many of them are compared with float64.
        lr: of the descent.
    """

    label: str
    model: dict[str, object]
    flat: bool
    n: int
    chunk: int
    steps: int
    audit: int
    lr: float


FULL = (
    Case("MLP 3072-200-200-10", {"name": "mlp"}, True, 5000, 1000, 100, 10, 0.05),
    Case("ResNet-20", {"name": "resnet20"}, False, 2048, 256, 100, 10, 0.05),
)
SMOKE = (
    Case("tiny MLP", {"name": "mlp", "hidden": (5,)}, True, 24, 10, 2, 1, 0.05),
    Case("tiny CNN", {"name": "cnn", "channels": (2,)}, False, 12, 5, 1, 1, 0.05),
)


def data(n: int, size: int, device: torch.device) -> tuple[Tensor, Tensor, str]:
    """Images [n, 3, size, size], labels [n], and where they are from."""
    if "MARGINTAIL_DATA" in os.environ and size == 32:
        x, y = images(n)
        return x.view(n, 3, size, size).to(device), y.to(device), "CIFAR-10"
    generator = torch.Generator().manual_seed(0)
    # Singular values of natural images decay about as 1/k.
    wide = 3 * size * size
    mixing = torch.randn(wide, wide, generator=generator) / torch.arange(1, wide + 1)[:, None]
    x = torch.randn(n, wide, generator=generator) @ mixing
    x = (x - x.mean()) / x.std()
    y = torch.randint(CLASSES, (n,), generator=generator)
    return x.view(n, 3, size, size).to(device), y.to(device), "random images"


def peak(x: Tensor) -> str:
    """The highest use of GPU memory since the last call."""
    if not x.is_cuda:
        return "memory is not measured on a CPU"
    highest = torch.cuda.max_memory_allocated(x.device) / 2**30
    torch.cuda.reset_peak_memory_stats(x.device)
    return f"peak {highest:.2f} GiB"


def products(model: nn.Module, x: Tensor, y: Tensor, case: Case) -> None:
    """Cost and memory of one product, whole and in chunks, and on the leading input directions."""
    vector = torch.randn(sum(p.numel() for p in model.parameters()), device=x.device)
    unit = seconds([training_step(model, x, y)], x)[0]
    print(f"a training step: {unit * 1e3:.3f} ms, {peak(x)}")
    for chunk in (None, case.chunk):
        matrix = GaussNewton(model, x, chunk=chunk)
        # Tracing, where there is some, comes before the products that are timed.
        for _ in range(4):
            matrix.matvec(vector)
        peak(x)
        spent = seconds([lambda matrix=matrix: matrix.matvec(vector)], x)[0]
        print(f"  product, chunk {chunk}: {spent * 1e3:.3f} ms = {spent / unit:.2f} steps, {peak(x)}")
    if case.flat:
        inner = MODELS.build(case.model, "model").build((RANK,), CLASSES).to(x)
        reduced = GaussNewton(inner, x[:, :RANK].contiguous())
        vector = torch.randn(reduced.size, device=x.device)
        spent = seconds([lambda: reduced.matvec(vector)], x)[0]
        print(f"  product on {RANK} inputs: {spent * 1e3:.3f} ms = {spent / unit:.2f} steps", flush=True)


def rounding(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """What TF32 does to a product and to the tracker's value."""
    exact = GaussNewton(copy.deepcopy(model).double(), x.double())
    values, vectors, _ = exact.top(tol=1e-4)
    vector, image = vectors[:, 0].to(x), exact.matvec(vectors[:, 0])
    for word, precision in {"off": "float32", "on": "tf32"}.items():
        with products_in(precision):
            matrix = GaussNewton(model, x)
            found = matrix.matvec(vector).double()
            tracked = SharpnessTracker().update(model, x, "ce").value
            unit, spent = seconds([training_step(model, x, y), lambda matrix=matrix: matrix.matvec(vector)], x)
        print(
            f"  TF32 {word:3s}: product {spent * 1e3:.3f} ms = {spent / unit:.2f} steps, error of "
            f"G v {float((found - image).norm() / values[0]):.1e}, of the tracker {tracked / float(values[0]) - 1:.1e}",
            flush=True,
        )


def report(case: Case, device: torch.device, size: int) -> None:
    """All sections for one network."""
    x, y, source = data(case.n, size, device)
    x = x.flatten(1) if case.flat else x
    torch.manual_seed(0)
    model = MODELS.build(case.model, "model").build(tuple(x.shape[1:]), CLASSES).to(device).eval()
    parameters = sum(p.numel() for p in model.parameters())
    print(f"\n{case.label}, {parameters} parameters, {source}, n = {case.n}", flush=True)
    loss = LOSSES.build({"name": "ce"}, "loss")
    print(render(compare(model, x, y, loss, lr=case.lr)), flush=True)
    products(model, x, y, case)
    rounding(model, x, y)
    methods = trackers()
    if Arpack.installed():
        methods["curvlinops + eigsh, ncv 6"] = Method(Arpack(6), "G")
    print(trail(model, x, y, methods, case.steps, audit=case.audit, lr=case.lr), flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args(arguments)
    device = torch.device("cpu" if chosen.smoke else chosen.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    with products_in("float32"):
        for case in SMOKE if chosen.smoke else FULL:
            report(case, device, 8 if chosen.smoke else 32)
        print("\nseveral networks")
        inputs, hidden = ((10,), (4,)) if chosen.smoke else ((RANK, 3072), (200, 200))
        for wide in inputs:
            n = 20 if chosen.smoke else 5000
            replicas(torch.randn(n, wide, device=device), (2,) if chosen.smoke else (4, 8, 16), hidden)


if __name__ == "__main__":
    main()
