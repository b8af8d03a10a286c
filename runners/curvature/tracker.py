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
from runners.curvature.krylov import Ritz, search, start_vectors
from runners.curvature.output import Output

# Input directions kept in the search; a layer that reads fewer than twice as many is taken whole.
RANK = 100
# A value that moved by more than this since the last step may be another eigenvalue's: search again.
JUMP = 0.08
LEAST = 8
HISTORY = 2


class SharpnessReading(NamedTuple):
    """What the tracker says of a step.

    Attributes:
        value: lambda_max, an exact Rayleigh quotient up to rounding, so a lower bound.
        residual: |G v - theta v| of the vector v found, theta its own quotient: an eigenvalue lies within it of theta.
        products: products with the matrix, in the reduced space where there is one.
        second: the second Ritz value, NaN where there is none.
        guard: the search was made again because the value jumped.
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

    Rayleigh-Ritz on the vectors of the last two steps, the second Ritz vector and the gradient, extended by residuals.
    For a perceptron with a wide first layer the search runs on the leading input directions, and one exact half
    product at the end makes value and residual those of the whole matrix.

    A residual certifies that an eigenvalue is near, not that it is the top one. Where the value moved by more than 8%
    since the last step the search is made again with a random vector and at least 8 dimensions.

    Args:
        tol: residual, relative to the value, at which the search stops.
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
            gradient: of the loss, one tensor for each trained parameter; a direction to search in.
            chunk: samples per pass.
        """
        started = time.perf_counter()
        matrix = GaussNewton(model, x, loss, forward=forward, chunk=chunk)
        linearization, inputs = matrix.linearization, None
        if matrix.perceptron is not None and matrix.perceptron.inputs[0].shape[1] >= 2 * self.rank:
            inputs = principal_inputs(x, self.rank)
            linearization = matrix.perceptron.with_inputs(inputs.coordinates)

        def product(rows: Tensor) -> Tensor:
            return half_transposed(linearization, matrix.root, half(linearization, matrix.root, rows))

        size = linearization.size
        known = self._vectors
        if known is not None and (known.shape[1] != size or known.dtype != x.dtype or known.device != x.device):
            known = None
        starts = [] if known is None else [known]
        if gradient is not None:
            starts.append(_flat(gradient, inputs)[None])
        random = start_vectors(1, size, matrix.like, self.seed + self._steps)
        if known is None:
            starts.append(random)
        found = search(product, torch.cat(starts), 1, self.tol, least=LEAST if known is None else 0)
        value, products = float(found.values[0]), found.products
        guard = known is not None and abs(value - self._value) > JUMP * self._value
        if guard:
            found = search(product, torch.cat([found.vectors, random]), 1, self.tol, least=LEAST)
            value, products = float(found.values[0]), products + found.products
        self._value = value
        self._steps += 1
        self._vectors = found.vectors if known is None else torch.cat([found.vectors, known])[:HISTORY]
        value, residual = self._finish(matrix, found, inputs)
        return SharpnessReading(
            value, residual, products, found.second, guard, time.perf_counter() - started
        )

    def _finish(self, matrix: GaussNewton, found: Ritz, inputs: PrincipalInputs | None) -> tuple[float, float]:
        value, residual = float(found.values[0]), float(found.residuals[0])
        if inputs is None or inputs.complete or value <= 0:
            return value, residual
        assert matrix.perceptron is not None
        reduced = matrix.perceptron.with_inputs(inputs.coordinates)
        dual = half(reduced, matrix.root, found.vectors)
        first = matrix.perceptron.pull_first(matrix.root.apply(dual))
        whole = torch.linalg.vector_norm(first, dtype=torch.float64) ** 2
        inside = torch.linalg.vector_norm(first @ inputs.basis, dtype=torch.float64) ** 2
        outside = max(0.0, float(whole - inside))
        image = value**2 + residual**2 + outside
        return image / value, (residual**2 + outside) ** 0.5

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on bit for bit."""
        return {"vectors": self._vectors, "value": self._value, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._vectors, self._value, self._steps = state["vectors"], state["value"], state["steps"]


def _flat(gradient: Sequence[Tensor], inputs: PrincipalInputs | None) -> Tensor:
    if inputs is None:
        return flatten(gradient)
    return flatten([gradient[0] @ inputs.basis, *gradient[1:]])
