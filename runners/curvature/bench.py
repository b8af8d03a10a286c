"""What lambda_max costs here and in other libraries, on the user's own network and data.

Cost is in training steps (one forward and backward pass over the same samples); accuracy is against float64. Time is
processor time where one thread computes, which other work on the machine disturbs least, and else wall time. Peers are
optional: one that is not installed, or that fails on the network, is named and left out.

    margintail bench curvature EXPERIMENT --steps 200

From Python: ``print(render(compare(model, x, y, loss)))``.
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh, lobpcg
from torch import Tensor, nn
from torch.nn.functional import one_hot

from runners.curvature.forward import run_forward
from runners.curvature.gauss_newton import GaussNewton
from runners.curvature.hessian import hessian_top
from runners.curvature.tracker import SharpnessTracker
from runners.losses import LOSSES, Loss

WARM_STEPS = 10
# How a peer's own search is stopped: the accuracy asked for, and a number of basis vectors below ARPACK's 20.
PEER_TOL = 1e-3
SMALL_BASIS = 8


@dataclass(frozen=True)
class Row:
    """One way to find lambda_max.

    Attributes:
        method: the library and its search; "(Hessian)" marks one that measures another matrix than the rest.
        start: "cold" from a random vector, or "warm" from what was found at the step before.
        steps: cost in training steps; for warm searches the mean over steps.
        worst: the largest cost of one search, in training steps.
        products: matrix-vector products, mean; NaN where the library does not tell.
        error: largest |value / truth - 1|, the truth in float64.
        seconds: what ``steps`` took.
        absent: the peer is not installed, and the numbers are NaN.
        failure: what the peer said when it failed on this network, and the numbers are NaN; else empty.
    """

    method: str
    start: str
    steps: float = float("nan")
    worst: float = float("nan")
    products: float = float("nan")
    error: float = float("nan")
    seconds: float = float("nan")
    absent: bool = False
    failure: str = ""


def clock(x: Tensor) -> float:
    """Seconds: processor time where one thread computes, else wall time, with the GPU of ``x`` waited for."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


class _Setting:
    """A network, its data, and what a training step costs on them."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> None:
        self.model, self.x, self.y, self.loss = model, x, y, loss
        self.criterion: nn.Module = nn.MSELoss() if loss.output == "mse" else nn.CrossEntropyLoss()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.output_loss = LOSSES.build({"name": loss.output}, "loss")
        classes = run_forward(model, x[:1]).logits.shape[1]
        self.targets = one_hot(y, classes).to(x.dtype) if loss.output == "mse" else y
        times = []
        for _ in range(7):
            started = clock(x)
            self.slopes = self.gradient()
            times.append(clock(x) - started)
        self.step_seconds = float(np.median(times[1:]))
        self.refresh()

    def refresh(self) -> None:
        """Make the step's own pass and gradient, which the tracker is handed."""
        self.forward = run_forward(self.model, self.x)
        self.slopes = self.gradient()

    def gradient(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.loss(self.model, self.x, self.y), self.parameters)

    def exact(self, hessian: bool) -> float:
        """The eigenvalue in float64, to a relative residual of 1e-4."""
        model, x = copy.deepcopy(self.model).double(), self.x.double()
        if hessian:
            values, _, _ = hessian_top(model, x, self.y, self.output_loss, k=1, tol=1e-4, seed=1)
        else:
            values, _, _ = GaussNewton(model, x, self.loss.output).top(1, 1e-4, seed=1)
        return float(values[0])


# A search gives the value, the number of products, and what to start from next time.
Search = Callable[[_Setting, Any], tuple[float, float, Any]]


def _tracker(setting: _Setting, before: Any) -> tuple[float, float, Any]:
    tracker = before or SharpnessTracker()
    reading = tracker.update(
        setting.model, setting.x, setting.loss.output, forward=setting.forward, gradient=setting.slopes
    )
    return reading.value, reading.products, tracker


def _counted(setting: _Setting, product: Callable[[np.ndarray], Any]) -> tuple[LinearOperator, list[int]]:
    count = [0]
    size = sum(p.numel() for p in setting.parameters)

    def matvec(v: np.ndarray) -> np.ndarray:
        count[0] += 1
        return np.asarray(product(v.reshape(-1)))

    return LinearOperator((size, size), matvec=matvec, dtype=np.dtype(np.float32)), count


def _curvlinops(basis: int | None) -> Search:
    def run(setting: _Setting, before: Any) -> tuple[float, float, Any]:
        matrix = (
            import_module("curvlinops")
            .GGNLinearOperator(
                setting.model,
                setting.criterion,
                setting.parameters,
                [(setting.x, setting.targets)],
                check_deterministic=False,
            )
            .to_scipy()
        )
        operator, count = _counted(setting, matrix.matvec)
        values, vectors = eigsh(operator, k=1, which="LA", tol=PEER_TOL, v0=before, ncv=basis)
        return float(values[0]), count[0], vectors[:, 0]

    return run


def _lobpcg(setting: _Setting, before: Any) -> tuple[float, float, Any]:
    matrix = GaussNewton(setting.model, setting.x, setting.loss.output, forward=setting.forward)
    operator, count = _counted(setting, lambda v: matrix.matvec(torch.from_numpy(v).to(setting.x)).cpu().numpy())
    start = before
    if start is None:
        start = np.random.default_rng(0).standard_normal((matrix.size, 1)).astype(np.float32)
    # Its tolerance is an absolute residual; the value to scale it by is that of the start's image.
    scale = float(np.linalg.norm(operator.matvec(start[:, 0])) / np.linalg.norm(start))
    values, vectors = lobpcg(operator, start, largest=True, tol=5e-3 * scale, maxiter=60)
    return float(values[0]), count[0], vectors


def _pyhessian(setting: _Setting, before: Any) -> tuple[float, float, Any]:
    # It draws from the global generator and leaves gradients behind.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = import_module("pyhessian").hessian(
            setting.model, setting.criterion, data=(setting.x, setting.targets), cuda=setting.x.is_cuda
        )
        values, _ = found.eigenvalues()
    setting.model.zero_grad(set_to_none=True)
    return float(values[0]), float("nan"), None


def _eigenthings(search: str) -> Search:
    def run(setting: _Setting, before: Any) -> tuple[float, float, Any]:
        peer = import_module("hessian_eigenthings")
        operator = peer.GGNOperator(
            setting.model,
            [(setting.x, setting.targets)],
            peer.supervised_forward,
            peer.supervised_loss_of_output(setting.criterion),
        )
        found = getattr(peer, search)(operator, k=1, seed=0)
        return float(found.eigenvalues[0]), float(found.iterations), None

    return run


@dataclass(frozen=True)
class _Method:
    name: str
    search: Search
    package: str | None = None
    warm: bool = True
    hessian: bool = False


METHODS = (
    _Method("margintail tracker", _tracker),
    _Method("LOBPCG (scipy) on margintail's product", _lobpcg),
    _Method("curvlinops GGN + eigsh, default ncv", _curvlinops(None), "curvlinops"),
    _Method(f"curvlinops GGN + eigsh, ncv {SMALL_BASIS}", _curvlinops(SMALL_BASIS), "curvlinops"),
    _Method(
        "hessian-eigenthings GGN, power",
        _eigenthings("deflated_power_iteration"),
        "hessian_eigenthings",
        False,
    ),
    _Method("hessian-eigenthings GGN, Lanczos", _eigenthings("lanczos"), "hessian_eigenthings", False),
    _Method("PyHessian power iteration (Hessian)", _pyhessian, "pyhessian", False, True),
)


def compare(model: nn.Module, x: Tensor, y: Tensor, loss: Loss, lr: float = 1e-2) -> list[Row]:
    """Every method cold at the network's present parameters, then warm along steps of gradient descent.

    The model is copied and left as it is. The cost of what uses this project's products leaves out the pass
    and the gradient that a step makes anyway.

    Args:
        model: the network, in the mode to evaluate in.
        x: inputs [n, ...].
        y: labels, int64 [n].
        loss: the training loss.
        lr: step size of the descent along which warm searches are measured.
    """
    model = copy.deepcopy(model)
    # Once before anything is timed: the inputs' decomposition is made once per data set.
    SharpnessTracker().update(model, x, loss.output)
    setting = _Setting(model, x, y, loss)
    rows: list[Row] = []
    states: dict[str, Any] = {}
    for method in METHODS:
        if method.package is not None and find_spec(method.package) is None:
            rows.append(Row(method.name, "cold", absent=True))
            continue
        with _limits(method, "cold", rows):
            # The first call of a library pays for its imports.
            method.search(setting, None)
            value, products, spent, state = _timed(method, setting, None)
            cost = spent / setting.step_seconds
            rows.append(
                Row(method.name, "cold", cost, cost, products, abs(value / setting.exact(method.hessian) - 1), spent)
            )
            if method.warm:
                states[method.name] = state
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in states}
    for _ in _descend(setting, lr):
        exact = setting.exact(hessian=False)
        for method in METHODS:
            if method.name in states:
                state = states.pop(method.name)
                with _limits(method, "warm", rows):
                    value, products, spent, states[method.name] = _timed(method, setting, state)
                    measured[method.name].append((spent, products, abs(value / exact - 1)))
    for name in states:
        seconds, counts, errors = np.array(measured[name]).T
        cost = seconds / setting.step_seconds
        rows.append(Row(name, "warm", cost.mean(), cost.max(), counts.mean(), errors.max(), seconds.mean()))
    return sorted(rows, key=lambda row: (row.absent, bool(row.failure)))


@contextmanager
def _limits(method: _Method, start: str, rows: list[Row]) -> Iterator[None]:
    """Turn another library's failure into a row: it is no reason to go without the rest of the table."""
    try:
        yield
    except Exception as error:
        if method.package is None:
            raise
        rows.append(Row(method.name, start, failure=f"{type(error).__name__}: {error}"))


def _timed(method: _Method, setting: _Setting, before: Any) -> tuple[float, float, float, Any]:
    started = clock(setting.x)
    value, products, state = method.search(setting, before)
    return value, products, clock(setting.x) - started, state


def _descend(setting: _Setting, lr: float) -> Iterator[int]:
    for step in range(WARM_STEPS):
        with torch.no_grad():
            for p, slope in zip(setting.parameters, setting.slopes, strict=True):
                p.sub_(slope, alpha=lr)
        setting.refresh()
        yield step


def render(rows: list[Row]) -> str:
    """The rows as a text table."""
    lines = [f"{'method':42s} {'start':5s} {'steps':>8s} {'worst':>8s} {'products':>9s} {'error':>9s} {'seconds':>9s}"]
    for row in rows:
        if row.absent or row.failure:
            lines.append(f"{row.method:42s} {row.failure.splitlines()[0] if row.failure else 'not installed'}")
            continue
        numbers = f"{row.steps:8.2f} {row.worst:8.2f} {row.products:9.1f} {row.error:9.1e} {row.seconds:9.2g}"
        lines.append(f"{row.method:42s} {row.start:5s} {numbers}")
    return "\n".join(lines)
