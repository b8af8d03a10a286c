"""Ways in which others track lambda_max along training, to measure beside this project's tracker.

What two published trackers do is repeated here by this file's own `lobpcg`, with their settings and their products:

- "EoSS": Andreyev and Beneventano, "Edge of Stochastic Stability" (arXiv 2412.20553), repository
  edge-of-stochastic-stability, utils/measure.py and utils/lobpcg.py: the Hessian by a kept double-backward graph;
  images are kept; no second direction at first; residual <= 0.005 (|A x| + theta); at most 100 iterations.
- "centralflows": Cohen et al., "Understanding Optimization in Deep Learning with Central Flows" (arXiv 2410.24206),
  repository centralflows, src/eig_solvers.py and src/lobpcg.py: the Hessian forward over reverse, columns by vmap;
  every iteration multiplies all three directions and the new vector, as ``jax.experimental.sparse.linalg`` does; its
  tol 1e-10 means a residual <= 1e-9 d (|A x| + theta).

`EossCheckout` measures with the first one's own files instead, from a checkout that the caller has.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vmap
from torch.nn.functional import cross_entropy

from runners.curvature import Forward, GaussNewton, SharpnessTracker, run_forward

Product = Callable[[Tensor], Tensor]


class Found(NamedTuple):
    """A value, its unit vector [d], and the products spent."""

    value: float
    vector: Tensor
    products: int


def lobpcg(product: Product, start: Tensor, tol: float, *, keep_images: bool, most: int = 100) -> Found:
    """The largest eigenvalue by locally optimal conjugate gradients with one vector and no preconditioner.

    Knyazev 2001, "Toward the optimal preconditioned eigensolver", SIAM J. Sci. Comput. 23, algorithm 4.1: Rayleigh-Ritz
    on the vector, the direction it last moved in, and its residual.

    Args:
        product: columns [d, k] -> A applied to each.
        start: [d], any length.
        tol: stops where the residual is at most tol (|A x| + theta), at the earliest after one iteration.
        keep_images: of A x, and begin without a last direction; else multiply all directions in each iteration, and
            begin with a coordinate axis.
        most: iterations.
    """
    x = start / start.norm()
    image = product(x[:, None])[:, 0]
    products = 1
    moved: Tensor | None = None
    if not keep_images:
        axis = torch.zeros_like(x)
        axis[1] = 1
        moved = _orthonormal(axis, x[:, None])
    theta = x @ image
    for _ in range(most):
        known = torch.stack([x] if moved is None else [x, moved], 1)
        basis = torch.cat([known, _orthonormal(image - theta * x, known)[:, None]], 1)
        new = basis[:, 1:] if keep_images else basis
        images_ = product(new)
        products += new.shape[1]
        if keep_images:
            images_ = torch.cat([image[:, None], images_], 1)
        projected = basis.T @ images_
        values, rotation = torch.linalg.eigh((projected + projected.T) / 2)
        theta, top = values[-1], rotation[:, -1]
        # The old vector without its part along the new one, in the coordinates of the other Ritz vectors: no
        # difference of nearly equal vectors is taken.
        direction = rotation[:, :-1] @ rotation[0, :-1]
        x, moved = basis @ top, basis @ (direction / direction.norm().clamp_min(torch.finfo(x.dtype).tiny))
        x = x / x.norm()
        image = product(x[:, None])[:, 0]
        products += 1
        if (image - theta * x).norm() <= tol * (image.norm() + theta):
            break
    return Found(float(theta), x, products)


def _orthonormal(vector: Tensor, basis: Tensor) -> Tensor:
    for _ in range(2):
        vector = vector - basis @ (basis.T @ vector)
        vector = vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
    return vector


@dataclass
class Point:
    """The network at a step, and what the step computes anyway: the pass, the loss with its graph, the gradient."""

    model: nn.Module
    x: Tensor
    y: Tensor
    forward: Forward
    loss: Tensor
    gradient: Sequence[Tensor]

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, y: Tensor) -> "Point":
        """One training step's forward and backward pass."""
        forward = run_forward(model, x, grad=True)
        loss = cross_entropy(forward.logits, y)
        gradient = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        return cls(model, x, y, forward, loss, gradient)


def double_backward(point: Point) -> Product:
    """Hessian products through a kept graph of the gradient, column by column."""
    parameters = list(point.model.parameters())
    gradient = _flat(torch.autograd.grad(point.loss, parameters, create_graph=True))

    def column(v: Tensor) -> Tensor:
        return _flat(torch.autograd.grad(gradient @ v, parameters, retain_graph=True))

    return lambda columns: torch.stack([column(v) for v in columns.T], 1)


def forward_over_reverse(point: Point) -> Product:
    """Hessian products as the forward derivative of the gradient, columns by vmap."""
    named = {name: p.detach() for name, p in point.model.named_parameters()}
    sizes = [p.numel() for p in named.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = zip(named.items(), flat.split(sizes), strict=True)
        return cross_entropy(
            functional_call(point.model, {name: piece.view_as(p) for (name, p), piece in pieces}, (point.x,)), point.y
        )

    at = _flat(named.values())
    return vmap(lambda v: jvp(jacrev(loss), (at,), (v,))[1], in_dims=1, out_dims=1)


def gauss_newton(point: Point) -> Product:
    """This project's products with the whole Gauss-Newton matrix."""
    return GaussNewton(point.model, point.x, forward=point.forward).matmat


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


class Tracker(Protocol):
    """Measures one step after the other."""

    def measure(self, point: Point, /) -> tuple[float, float]:
        """The value and the products spent."""
        ...


class Method(NamedTuple):
    """A tracker, and the matrix it measures: G (Gauss-Newton) or H (Hessian)."""

    tracker: Tracker
    matrix: str


class Ours:
    """`SharpnessTracker`, handed the step's own pass and gradient."""

    def __init__(self) -> None:
        self._tracker = SharpnessTracker()

    def measure(self, point: Point) -> tuple[float, float]:
        """The value and the products spent."""
        reading = self._tracker.update(
            point.model, point.x, "ce", forward=point.forward, gradient=tuple(g.detach() for g in point.gradient)
        )
        return reading.value, reading.products


class Arpack:
    """curvlinops' Gauss-Newton operator under scipy's eigsh, from the last vector."""

    def __init__(self, basis: int | None, tol: float = 1e-3) -> None:
        self._basis, self._tol = basis, tol
        self._vector: np.ndarray | None = None

    @staticmethod
    def installed() -> bool:
        """Whether curvlinops is."""
        return find_spec("curvlinops") is not None

    def measure(self, point: Point) -> tuple[float, float]:
        """The value and the products spent."""
        from curvlinops import GGNLinearOperator

        operator = GGNLinearOperator(
            point.model,
            nn.CrossEntropyLoss(),
            [p for p in point.model.parameters() if p.requires_grad],
            [(point.x, point.y)],
            check_deterministic=False,
        ).to_scipy()
        count = [0]

        def matvec(v: np.ndarray) -> np.ndarray:
            count[0] += 1
            return operator.matvec(v.reshape(-1))

        counted = LinearOperator(operator.shape, matvec=matvec, dtype=np.dtype(np.float32))
        values, vectors = eigsh(counted, k=1, which="LA", tol=self._tol, v0=self._vector, ncv=self._basis)
        self._vector = vectors[:, 0]
        return float(values[0]), count[0]


class Lobpcg:
    """`lobpcg` from the last vector; ``tol`` from the number of parameters."""

    def __init__(self, product: Callable[[Point], Product], tol: Callable[[int], float], keep_images: bool) -> None:
        self._product, self._tol, self._keep = product, tol, keep_images
        self._vector: Tensor | None = None

    def measure(self, point: Point) -> tuple[float, float]:
        """The value and the products spent."""
        size = sum(p.numel() for p in point.model.parameters())
        if self._vector is None:
            self._vector = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(point.x)
        found = lobpcg(self._product(point), self._vector, self._tol(size), keep_images=self._keep)
        self._vector = found.vector
        return found.value, found.products


class EossCheckout:
    """The tracker of "Edge of Stochastic Stability" itself: its ``compute_eigenvalues`` with its cache of vectors.

    Args:
        checkout: folder of the repository edge-of-stochastic-stability, whose requirements are installed.
    """

    def __init__(self, checkout: Path) -> None:
        sys.path.insert(0, str(checkout))
        measure = importlib.import_module("utils.measure")
        self._eigenvalues = measure.compute_eigenvalues
        self._cache = measure.EigenvectorCache()
        self._products = 0
        create = measure.create_hessian_vector_product

        def counted(loss: Tensor, net: nn.Module) -> Product:
            product = create(loss, net)

            def count(columns: Tensor) -> Tensor:
                self._products += columns.shape[1]
                return product(columns)

            return count

        measure.create_hessian_vector_product = counted

    def measure(self, point: Point) -> tuple[float, float]:
        """The value and the products spent."""
        before = self._products
        value = self._eigenvalues(point.loss, point.model, eigenvector_cache=self._cache)
        return float(value), self._products - before


def eoss(product: Callable[[Point], Product] = double_backward) -> Lobpcg:
    """The tracker of "Edge of Stochastic Stability"."""
    return Lobpcg(product, lambda size: 0.005, keep_images=True)


def centralflows(product: Callable[[Point], Product] = forward_over_reverse) -> Lobpcg:
    """The tracker of "Central Flows"."""
    return Lobpcg(product, lambda size: 1e-9 * size, keep_images=False)


def trackers() -> dict[str, Method]:
    """Ours, first, and the two published ones, each with the product it came with and with ours."""
    return {
        "margintail tracker": Method(Ours(), "G"),
        "EoSS LOBPCG": Method(eoss(), "H"),
        "EoSS LOBPCG, our product": Method(eoss(gauss_newton), "G"),
        "centralflows LOBPCG": Method(centralflows(), "H"),
        "centralflows LOBPCG, our product": Method(centralflows(gauss_newton), "G"),
    }
