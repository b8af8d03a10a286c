"""lambda_max along a trajectory: a warm-started search that is certified at every step."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from runners.curvature.flat import flatten
from runners.curvature.forward import Forward
from runners.curvature.gauss_newton import GaussNewton, half, half_transposed
from runners.curvature.inputs import PrincipalInputs, principal_inputs
from runners.curvature.krylov import Subspace, start_vectors
from runners.curvature.output import Output
from runners.curvature.perceptron import LinearizedPerceptron

# Input directions kept in the search; a layer that reads fewer than twice as many is taken whole.
RANK = 100
# A value that moved by more than this since the last step may be another eigenvalue's.
JUMP = 0.08
# Steps between probes for an eigenvalue that grew outside the space that is followed.
PROBE_EVERY = 25
# Dimensions of a probe: a random vector and its images.
PROBE = 3
# Dimensions of the first search, which has no vectors to start from.
COLD = 12
MOST_DIMENSIONS = 40


class SharpnessReading(NamedTuple):
    """What the tracker says of a step.

    Attributes:
        value: lambda_max as the dual Rayleigh quotient |G v|^2 / v^T G v, so a lower bound (up to rounding).
        residual: |G v - theta v| for theta = v^T G v, |v| = 1: an eigenvalue lies within it of theta, and theta is
            below ``value`` by residual^2 / theta.
        products: products with the matrix, in the reduced space where there is one.
        second: the second Ritz value, NaN where there is none.
        guard: the space was widened by a random probe because the value jumped.
        seconds: wall time of the update.
    """

    value: float
    residual: float
    products: int
    second: float
    guard: bool
    seconds: float


class SharpnessTracker:
    """Follows the top eigenvalue of the Gauss-Newton matrix along a trajectory.

    Rayleigh-Ritz on the top vectors of the last two steps and the last second Ritz vector, extended by residuals. For a
    perceptron with a wide first layer the search runs on the leading input directions, and one exact half product at
    the end makes value and residual those of the whole matrix.

    A residual certifies that an eigenvalue is near, not that it is the top one. The second Ritz vector follows the most
    likely one to overtake; a random vector and two images of it join the space every 25 steps, and whenever the value
    moved by more than 8%.

    Not for a loss whose output Hessian is neither of `GaussNewton`'s two.

    Args:
        tol: relative residual r at which the search stops where the second Ritz value is two thirds of the first. In
            general it stops when r <= 4 tol and the error r^2 rho / (1 - rho) <= 2 tol^2, rho the ratio of the second
            Ritz value to the first.
        seed: of the random vectors, which are the tracker's own.
        rank: input directions that the search keeps.
    """

    def __init__(self, tol: float = 5e-3, seed: int = 0, rank: int = RANK) -> None:
        self.tol = tol
        self.seed = seed
        self.rank = rank
        self._vectors: Tensor | None = None
        self._value = 0.0
        self._steps = 0

    @torch.no_grad()
    def update(
        self,
        model: nn.Module,
        x: Tensor,
        loss: Output = "ce",
        *,
        forward: Forward | None = None,
        gradient: Sequence[Tensor] | None = None,
        chunk: int | None = None,
    ) -> SharpnessReading:
        """Measure at the network's present parameters.

        Args:
            model: the network, in the mode to evaluate in.
            x: inputs [n, ...]; the same tensor at each step, so that its decomposition is made once.
            loss: "ce" or "mse".
            forward: the step's own pass over ``x`` by `run_forward`.
            gradient: of the loss, one tensor for each trained parameter; one more direction of the first search.
            chunk: samples per pass.

        Returns:
            The reading; NaN values, and no vector kept, where logits are not finite.
        """
        started = time.perf_counter()
        matrix = GaussNewton(model, x, loss, forward=forward, chunk=chunk)
        if not bool(matrix.like.isfinite().all()):
            nan = float("nan")
            return SharpnessReading(nan, nan, 0, nan, False, time.perf_counter() - started)
        linearization, inputs = matrix.linearization, None
        perceptron = matrix.perceptron
        if perceptron is not None and perceptron.inputs[0].shape[1] >= 2 * self.rank:
            inputs = principal_inputs(x, self.rank)
            linearization = perceptron.with_inputs(inputs.coordinates)
        duals: list[Tensor] = []

        def product(rows: Tensor) -> Tensor:
            duals.append(half(linearization, matrix.root, rows))
            return half_transposed(linearization, matrix.root, duals[-1])

        size = linearization.size
        space = Subspace(product, matrix.like, size, min(size, MOST_DIMENSIONS))
        guard = self._search(space, self._starts(size, matrix.like, gradient, inputs), size, matrix.like)
        values, coordinates = space.ritz()
        theta = float(values[0])
        vectors, image = coordinates[:2] @ space.basis, coordinates[0] @ space.images
        squared = float(torch.linalg.vector_norm(image, dtype=torch.float64)) ** 2
        if inputs is not None and not inputs.complete:
            assert perceptron is not None
            dual = torch.einsum("m,nmk->nk", coordinates[0], torch.cat(duals, 1))[:, None]
            squared += _outside(perceptron, matrix.root.apply(dual), image, inputs)
        older = self._vectors[:1] if self._vectors is not None and self._vectors.shape[1] == size else vectors[:0]
        # In the order of use: the top vector, the second, the top one before.
        self._vectors = torch.cat([vectors, older])
        self._value = theta
        self._steps += 1
        return SharpnessReading(
            value=squared / theta if theta > 0 else 0.0,
            residual=max(0.0, squared - theta**2) ** 0.5,
            products=space.products,
            second=float(values[1]) if len(values) > 1 else float("nan"),
            guard=guard,
            seconds=time.perf_counter() - started,
        )

    def _starts(
        self, size: int, like: Tensor, gradient: Sequence[Tensor] | None, inputs: PrincipalInputs | None
    ) -> Tensor | None:
        """The vectors of the last steps, rows; None where there are none of this network."""
        known = self._vectors
        if known is not None and (known.shape[1], known.dtype, known.device) == (
            size,
            like.dtype,
            like.device,
        ):
            return known
        self._vectors = None
        if gradient is None:
            return None
        first = gradient[0] if inputs is None else gradient[0] @ inputs.basis
        return flatten([first, *gradient[1:]])[None]

    def _search(self, space: Subspace, starts: Tensor | None, size: int, like: Tensor) -> bool:
        """Extend the space until its top vector has converged; whether the guard had to act."""
        cold = self._vectors is None
        if starts is not None:
            space.extend(starts)
        if cold or self._steps % PROBE_EVERY == 0:
            self._probe(space, COLD if cold else PROBE, like)
        guard = False
        while space.dimensions < min(size, MOST_DIMENSIONS):
            values, coordinates = space.ritz()
            theta = float(values[0])
            residual = coordinates[0] @ space.images
            residual.sub_(coordinates[0] @ space.basis, alpha=theta)
            relative = float(torch.linalg.vector_norm(residual)) / theta if theta > 0 else 0.0
            rho = max(0.0, float(values[1])) / theta if theta > 0 and len(values) > 1 else 0.0
            if relative <= 4 * self.tol and relative**2 * rho <= 2 * self.tol**2 * (1 - rho):
                if cold or guard or abs(theta - self._value) <= JUMP * self._value:
                    break
                guard = True
                self._probe(space, PROBE, like)
            elif not space.extend(residual[None]):
                self._probe(space, 1, like)
        return guard

    def _probe(self, space: Subspace, count: int, like: Tensor) -> None:
        """Add a random vector and the images of it: ``count`` dimensions, fewer where the space is exhausted."""
        size = space.basis.shape[1]
        # One stream per step and dimension, so that a resumed run draws the same.
        seed = (self.seed * 1_000_003 + self._steps) * (MOST_DIMENSIONS + 1) + space.dimensions
        added = space.extend(start_vectors(1, size, like, seed))
        for _ in range(count - 1):
            if not added:
                break
            added = space.extend(space.images[-1:])

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on bit for bit."""
        return {"vectors": self._vectors, "value": self._value, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._vectors, self._value, self._steps = state["vectors"], state["value"], state["steps"]


def _outside(perceptron: LinearizedPerceptron, cotangents: Tensor, image: Tensor, inputs: PrincipalInputs) -> float:
    """The squared length of the part of G v that the reduced inputs cannot hold.

    The exact first layer of G v is longer than its projection, the first layer of the reduced image, by Pythagoras.
    """
    first = perceptron.pull_first(cotangents)
    inside = image[: first.shape[0] * inputs.basis.shape[1]]
    lengths = [float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in (first, inside)]
    return max(0.0, lengths[0] ** 2 - lengths[1] ** 2)
