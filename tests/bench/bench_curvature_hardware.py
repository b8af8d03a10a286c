"""What chunks, bfloat16 and replicas in one batch do to the cost, the memory and the error of Gauss-Newton products.

Random inputs serve for memory and replicas, whose cost does not depend on them; bfloat16's error needs the images of
MARGINTAIL_DATA. Costs are processor time on one thread and else wall time, medians, in turn in one process.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_curvature_hardware memory
    OMP_NUM_THREADS=1 python -m tests.bench.bench_curvature_hardware bfloat16
    OMP_NUM_THREADS=1 python -m tests.bench.bench_curvature_hardware replicas
    OMP_NUM_THREADS=2 python -m tests.bench.bench_curvature_hardware replicas --threads 2
"""

import argparse
import copy
import multiprocessing
import resource
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from runners.curvature import GaussNewton, SharpnessTracker
from runners.curvature.bench import clock
from runners.models import MODELS
from tests.bench.bench_curvature import images, seconds, training_step
from tests.bench.bench_curvature_peers import descend

CLASSES = 10
# A product that would not fit is stopped by this limit on the address space rather than by the machine.
MOST_BYTES = 10 * 2**30

MEMORY_CASES: list[tuple[str, int, str, int | None]] = [
    ("mlp", 5000, "product", None),
    ("mlp", 5000, "product", 500),
    ("mlp", 5000, "product", 100),
    ("mlp", 5000, "tracker", None),
    ("mlp", 5000, "tracker", 500),
    ("resnet20", 500, "product", None),
    ("resnet20", 500, "product", 100),
    ("resnet20", 2000, "product", None),
    ("resnet20", 2000, "product", 500),
    ("resnet20", 2000, "product", 100),
    ("resnet20", 200, "tracker", None),
    ("resnet20", 200, "tracker", 50),
]


def network(name: str) -> nn.Module:
    """The paper's perceptron or ResNet-20, in evaluation mode, on 3 x 32 x 32 images."""
    torch.manual_seed(0)
    return MODELS.build({"name": name}, "model").build((3, 32, 32), CLASSES).eval()


def memory() -> None:
    """Rise of a fresh process's high-water mark by one product, or by one cold tracker update; on Linux."""
    print(f"{'network':9s} {'n':>5s} {'what':8s} {'chunk':>6s} {'peak rise':>10s} {'products':>8s} {'seconds':>8s}")
    context = multiprocessing.get_context("spawn")
    for name, n, what, chunk in MEMORY_CASES:
        with context.Pool(1) as pool:
            rise, products, spent = pool.apply(_peak, (name, n, what, chunk))
        size = f"{rise / 2**20:7.0f} MiB" if rise else f"> {MOST_BYTES / 2**30:.0f} GiB"
        print(f"{name:9s} {n:5d} {what:8s} {chunk or 'whole':>6} {size:>11s} {products:8d} {spent:8.1f}", flush=True)


def _peak(name: str, n: int, what: str, chunk: int | None) -> tuple[int, int, float]:
    """Bytes, products, seconds; no bytes where the limit was met."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    model, x = network(name), torch.randn(n, 3, 32, 32)
    with torch.no_grad():
        # What a first call loads is none of the product's memory.
        GaussNewton(model, x[:2]).matvec(torch.randn(sum(p.numel() for p in model.parameters())))
    # Linux forgets the high-water mark of resident memory on this request.
    Path("/proc/self/clear_refs").write_text("5")
    before, started = _high_water(), clock(x)
    products = 1
    try:
        if what == "product":
            matrix = GaussNewton(model, x, chunk=chunk)
            matrix.matvec(torch.randn(matrix.size))
        else:
            products = SharpnessTracker(tol=0.2).update(model, x, "ce", chunk=chunk).products
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        return 0, 0, clock(x) - started
    return _high_water() - before, products, clock(x) - started


def _high_water() -> int:
    """The process's highest resident memory, bytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def bfloat16(n: int = 2000, descent: int = 200) -> None:
    """Cost and error of products in bfloat16, at the start and after gradient descent at eta 0.05.

    "inside" is the same layers on 100 inputs, as large as a product on the leading input directions.
    """
    x, y = images(n)
    model = MODELS.build({"name": "mlp"}, "model").build((x.shape[1],), CLASSES)
    inner = MODELS.build({"name": "mlp"}, "model").build((100,), CLASSES)
    for steps in (0, descent):
        for _ in range(steps):
            descend(model, training_step(model, x, y)())
        exact = GaussNewton(copy.deepcopy(model).double(), x.double())
        values, vectors, _ = exact.top(tol=1e-4)
        vector, image = vectors[:, 0], exact.matvec(vectors[:, 0])
        print(f"after {steps} steps, lambda {float(values[0]):.2f}")
        for dtype in (torch.float32, torch.bfloat16):
            matrix = GaussNewton(copy.deepcopy(model).to(dtype), x.to(dtype))
            small = GaussNewton(copy.deepcopy(inner).to(dtype), x[:, :100].to(dtype))
            rows = [vector.to(dtype), torch.ones(small.size, dtype=dtype)]
            unit, spent, inside = seconds(
                [
                    training_step(model, x, y),
                    lambda matrix=matrix, rows=rows: matrix.matvec(rows[0]),
                    lambda small=small, rows=rows: small.matvec(rows[1]),
                ],
                x,
            )
            found = matrix.matvec(rows[0]).double()
            print(
                f"  {str(dtype)[6:]:8s}: whole {spent / unit:.2f} steps, inside {inside / unit:.2f} steps of "
                f"{unit * 1e3:.1f} ms; error of G v {float((found - image).norm() / values[0]):.1e}, of v^T G v "
                f"{float(vector @ found / values[0] - 1):.1e}",
                flush=True,
            )
        try:
            with torch.autocast("cpu", torch.bfloat16):
                GaussNewton(model, x).matvec(vector.float())
        except RuntimeError as error:
            print(f"  under autocast: {str(error).splitlines()[0]}")


class StackedPerceptrons:
    """G v of R networks of one shape on the same inputs, as batched matrix products.

    Args:
        models: R perceptrons of linear layers with biases and tanh between.
        x: inputs [n, f].
    """

    def __init__(self, models: Sequence[nn.Module], x: Tensor) -> None:
        layers = [[m for m in model.children() if isinstance(m, nn.Linear)] for model in models]
        columns = list(zip(*layers, strict=True))
        self._weights = [torch.stack([layer.weight.detach() for layer in column]) for column in columns]
        biases = [torch.stack([layer.bias.detach() for layer in column])[:, None] for column in columns]
        self._inputs = [x.expand(len(models), *x.shape)]
        for weight, bias in zip(self._weights[:-1], biases[:-1], strict=True):
            self._inputs.append(torch.baddbmm(bias, self._inputs[-1], weight.transpose(1, 2)).tanh_())
        self._slopes = [1 - h * h for h in self._inputs[1:]]
        logits = torch.baddbmm(biases[-1], self._inputs[-1], self._weights[-1].transpose(1, 2))
        self._p = logits.softmax(-1)

    def matvec(self, vectors: Tensor) -> Tensor:
        """Each network's G times its row: [R, d] -> [R, d]."""
        runs, (n, _) = len(vectors), self._inputs[0].shape[1:]
        sizes = [size for w in self._weights for size in (w[0].numel(), w.shape[1])]
        pieces = vectors.split(sizes, 1)
        tangent = None
        for layer, (weight, h) in enumerate(zip(self._weights, self._inputs, strict=True)):
            moved = torch.baddbmm(pieces[2 * layer + 1][:, None], h, pieces[2 * layer].view_as(weight).transpose(1, 2))
            if tangent is not None:
                moved.baddbmm_(tangent, weight.transpose(1, 2))
            tangent = moved.mul_(self._slopes[layer]) if layer < len(self._slopes) else moved
        assert tangent is not None
        g = self._p * (tangent - (self._p * tangent).sum(-1, keepdim=True)) / n
        found: list[Tensor] = []
        for layer in range(len(self._weights) - 1, -1, -1):
            found = [torch.bmm(g.transpose(1, 2), self._inputs[layer]).view(runs, -1), g.sum(1), *found]
            if layer:
                g = torch.bmm(g, self._weights[layer]).mul_(self._slopes[layer - 1])
        return torch.cat(found, 1)


def replicas(x: Tensor, counts: Sequence[int], hidden: tuple[int, ...] = (200, 200)) -> None:
    """Products of R networks one after the other, against one batched product.

    Args:
        x: inputs [n, f]: whole images, or a data set's coordinates on f input directions.
        counts: R of each line.
        hidden: widths.
    """
    for runs in counts:
        models = []
        for seed in range(runs):
            torch.manual_seed(seed)
            model = MODELS.build({"name": "mlp", "hidden": hidden}, "model").build((x.shape[1],), CLASSES)
            models.append(model.to(x))
        singles = [GaussNewton(model, x) for model in models]
        stacked = StackedPerceptrons(models, x)
        vectors = torch.randn(runs, singles[0].size).to(x)

        def apart(singles: list[GaussNewton] = singles, vectors: Tensor = vectors) -> Tensor:
            return torch.stack([g.matvec(v) for g, v in zip(singles, vectors, strict=True)])

        with torch.no_grad():
            wrong = float((stacked.matvec(vectors) - apart()).norm() / apart().norm())
            one_by_one, together = seconds([apart, lambda s=stacked, v=vectors: s.matvec(v)], x)
        print(
            f"R = {runs}, {x.shape[1]} inputs, n = {len(x)}: apart {one_by_one * 1e3:.2f} ms, batched "
            f"{together * 1e3:.2f} ms, {one_by_one / together:.2f} times as fast (they differ by {wrong:.0e})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["memory", "bfloat16", "replicas"])
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.command == "replicas":
        for n, inputs in ((2000, 100), (500, 100), (2000, 3072)):
            replicas(torch.randn(n, inputs), (4, 8))
    else:
        {"memory": memory, "bfloat16": bfloat16}[chosen.command]()


if __name__ == "__main__":
    main()
