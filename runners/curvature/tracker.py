"""lambda_max along a trajectory: a warm-started search that is certified at every step."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from runners.curvature.flat import flatten
from runners.curvature.forward import Forward
from runners.curvature.gauss_newton import GaussNewton, half, half_transposed
from runners.curvature.inputs import Coordinates, PrincipalInputs, enriched, principal_inputs
from runners.curvature.krylov import Subspace, start_vectors
from runners.curvature.output import Output
from runners.curvature.perceptron import LinearizedPerceptron
from runners.curvature.reduction import Bases, Reduction, fits, leading, turned

# Input directions kept in the search; a layer that reads fewer than twice as many is taken whole.
RANK = 64
# A value that moved by more than this since the last step may be another eigenvalue's.
JUMP = 0.08
# Steps between probes for an eigenvalue that grew outside the space that is followed.
PROBE_EVERY = 25
# Dimensions of a probe: a random vector and its images.
PROBE = 3
# Between probes what lies outside the directions is trusted not to have grown, in its Rayleigh quotient, by more.
OUTSIDE_GROWTH = 20.0
# Dimensions of the first search, which has no vectors to start from.
COLD = 12
MOST_DIMENSIONS = 40
# Times in one search that the second Ritz pair is looked at again, as long as its eigenvalue may be above the first.
MOST_LOOKS = 4
# Where more than this share of G v, |v| = 1, lies outside the input directions of the search, they may have to be
# enriched ...
OUTSIDE = 0.015
# ... by so many directions, upon which the search goes on, at most so often in one step.
ENRICHMENT = 64
MOST_ENRICHMENTS = 2
# Where the leading axes of the inputs leave out more of the value than this, all axes are taken ...
MOST_FAINT = 2e-5
# ... and where these might leave out more than this, the inputs as they are.
UNSEEN = 5e-5


class SharpnessReading(NamedTuple):
    """What the tracker says of a step.

    Attributes:
        value: lambda_max as the dual Rayleigh quotient |G v|^2 / v^T G v, so a lower bound (up to rounding). On a
            perceptron's input axes it is lower by what these leave out: what rounding hides, at most 5e-5 of it, and
            the faintest axes, estimated at 2e-5 of it or less.
        residual: |G v - theta v| for theta = v^T G v, |v| = 1: an eigenvalue lies within it of theta, and theta is
            below ``value`` by residual^2 / theta. What the faint axes hold of it is in it, as estimated.
        products: products with the matrix, in the reduced space where there is one.
        second: the second Ritz value, NaN where there is none.
        guard: the space was widened because the value jumped.
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

    Rayleigh-Ritz on a prediction of the top vector, from those of the last three steps, and on the last second Ritz
    vector, extended by residuals. For a perceptron with a wide first layer the search runs on the leading input
    directions, and half a product with what they leave out makes value and residual those of the whole matrix. Where
    they leave out too much, as when a few samples hold the curvature, the directions that are missing join them.

    A residual certifies that an eigenvalue is near, not that it is the top one. The second Ritz vector follows the most
    likely one to overtake: an eigenvalue lies within its own residual of its value, so while the two together exceed
    the first value, its residual joins the space too, four times at most. A random vector and two images of it join
    every 25 steps; whenever the value moved by more than 8%, the third Ritz vector of the step before, another that may
    have overtaken, takes the place of one of the two images.

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
        self._memory: _Memory | None = None
        # The bases, layer by layer, that this is on.
        self._bases: Bases | None = None
        # The Rayleigh quotient of what last lay outside them, as a share of the value.
        self._outside_share: float | None = None
        self._coordinates: Coordinates = "leading"
        self._hidden_whole = False
        self._enriched: tuple[PrincipalInputs, PrincipalInputs] | None = None
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
        perceptron = matrix.perceptron
        reduced = perceptron is not None and perceptron.inputs[0].shape[1] >= 2 * self.rank
        guard, products, enrichments = False, 0, 0
        while True:
            inputs = self._inputs(x) if reduced else None
            reduction = None if inputs is None else self._reduce(matrix, inputs)
            found = self._find(matrix, gradient, inputs, reduction)
            guard, products = guard or found.guard, products + found.products
            if found.unseen > UNSEEN:
                self._leave_axes()
                continue
            if found.faint > MOST_FAINT:
                self._take_all_axes(x)
                continue
            if inputs is None or reduction is None or enrichments == MOST_ENRICHMENTS:
                break
            if found.beside <= OUTSIDE * found.theta:
                break
            outside = reduction.outside(found.image)
            if self._suffices(matrix, reduction, outside, found.theta):
                break
            self._enrich(inputs, reduction, found, outside)
            enrichments += 1
        squared = _length(found.image) ** 2
        self._remember(found.vectors)
        self._value = found.theta
        self._steps += 1
        return SharpnessReading(
            value=squared / found.theta if found.theta > 0 else 0.0,
            residual=max(0.0, squared + (found.faint - 1) * found.theta**2) ** 0.5,
            products=products,
            second=found.second,
            guard=guard,
            seconds=time.perf_counter() - started,
        )

    def _find(
        self,
        matrix: GaussNewton,
        gradient: Sequence[Tensor] | None,
        inputs: PrincipalInputs | None,
        reduction: Reduction | None,
    ) -> "_Found":
        """The top vector of the matrix, on these directions."""
        linearization = matrix.linearization if reduction is None else reduction.reduced
        duals: list[Tensor] = []

        def product(rows: Tensor) -> Tensor:
            duals.append(half(linearization, matrix.root, rows))
            return half_transposed(linearization, matrix.root, duals[-1])

        size = linearization.size
        space = Subspace(product, matrix.like, size, min(size, MOST_DIMENSIONS))
        self._forget_other_networks(size, matrix.like)
        guard = self._search(space, self._first(gradient, inputs, reduction), size, matrix.like)
        values, coordinates = space.ritz()
        theta = float(values[0])
        image, beside, unseen, faint = coordinates[:1] @ space.images, 0.0, 0.0, 0.0
        if inputs is not None and reduction is not None:
            dual = torch.einsum("m,nmk->nk", coordinates[0], torch.cat(duals, 1))[:, None]
            backward = reduction.whole.backward(matrix.root.apply(dual))
            inside, image = _length(image), reduction.whole.gather(backward)
            beside = max(0.0, _length(image) ** 2 - inside**2) ** 0.5
            first = backward[-1][1][:, 0]
            if theta > 0:
                unseen = (inputs.unseen * _length(first) / theta) ** 2
                faint = 0.0 if inputs.faint is None else (_length(first.T @ inputs.faint) / theta) ** 2
        return _Found(
            theta=theta,
            second=float(values[1]) if len(values) > 1 else float("nan"),
            vectors=coordinates[:3] @ space.basis,
            image=image,
            beside=beside,
            unseen=unseen,
            faint=faint,
            guard=guard,
            products=space.products,
        )

    def _inputs(self, x: Tensor) -> PrincipalInputs:
        """The input directions of the search: the leading ones of the data, or these enriched."""
        principal = principal_inputs(x, self.rank, coordinates=self._coordinates)
        basis = self._bases[0] if self._bases else None
        if basis is None or (len(basis), basis.dtype, basis.device) != (len(principal.basis), x.dtype, x.device):
            return principal
        if basis.shape[1] <= principal.basis.shape[1]:
            return principal
        if self._enriched is None or self._enriched[0] is not principal or self._enriched[1].basis is not basis:
            self._enriched = (principal, principal.with_basis(basis))
        return self._enriched[1]

    def _reduce(self, matrix: GaussNewton, inputs: PrincipalInputs) -> Reduction:
        """The directions of this step's search; the vectors of the steps before are turned to them."""
        perceptron = matrix.perceptron
        assert perceptron is not None
        whole = perceptron.with_inputs([inputs.inputs])
        before = self._bases if self._bases is not None and fits(self._bases, whole) else None
        if self._hidden_whole:
            hidden: Bases = [None] * (len(whole.shapes) - 1)
        else:
            hidden = leading(perceptron, None if before is None else before[1:])
        reduction = Reduction.of(whole, inputs, hidden)
        if before is None:
            self._memory = self._outside_share = None
        elif self._memory is not None:
            self._memory = self._memory.turned(whole, before, reduction.bases)
        self._bases = reduction.bases
        return reduction

    def _take_all_axes(self, x: Tensor) -> None:
        """Go on on all axes: directions of the leading ones have no part in the others."""
        self._coordinates = "axes"
        assert self._bases is not None
        assert self._bases[0] is not None
        basis = self._bases[0]
        more = principal_inputs(x, self.rank).inputs.shape[1] - len(basis)
        self._bases = [torch.cat([basis, basis.new_zeros(more, basis.shape[1])]), *self._bases[1:]]

    def _leave_axes(self) -> None:
        """Go on in the inputs' own coordinates, in which the vectors of before are others."""
        self._coordinates = "inputs"
        self._memory = self._bases = self._enriched = self._outside_share = None

    def _converged(self, relative: float, rho: float) -> bool:
        """Whether the error is small, for a residual in directions whose Rayleigh quotient is ``rho`` of the value."""
        return relative**2 * rho <= 2 * self.tol**2 * (1 - rho)

    def _suffices(self, matrix: GaussNewton, reduction: Reduction, outside: Tensor, theta: float) -> bool:
        """Whether what lies outside the directions, [1, d], changes the value by little."""
        length = _length(outside)
        relative = length / theta
        known = self._outside_share
        is_due = self._steps % PROBE_EVERY == 0
        if known is not None and not is_due and self._converged(relative, OUTSIDE_GROWTH * known):
            return True
        dual = half(reduction.whole, matrix.root, outside / length)
        self._outside_share = _length(dual) ** 2 / theta
        return self._converged(relative, self._outside_share)

    def _enrich(self, inputs: PrincipalInputs, reduction: Reduction, found: "_Found", outside: Tensor) -> None:
        """Add the directions of G v that are missing, and go on from G v.

        They are added to the first layer's, unless more is missing in the layers after it: those are then taken whole.
        """
        width, axes = reduction.whole.shapes[0]
        first = slice(0, width * axes)
        bases = list(reduction.bases)
        if 2 * _length(outside[:, first]) ** 2 < _length(outside) ** 2:
            self._hidden_whole = True
            bases[1:] = [None] * (len(bases) - 1)
        else:
            whole = found.image[0, first].view(width, axes)
            bases[0] = enriched(inputs.basis[:, : self.rank], whole, ENRICHMENT)
        every: Bases = [None] * len(bases)
        image = turned(found.image, reduction.whole, every, bases)
        others = turned(found.vectors[1:], reduction.whole, reduction.bases, bases)
        tops = image[:0] if self._memory is None else self._memory.turned(reduction.whole, reduction.bases, bases).tops
        self._memory = _Memory(torch.cat([image, others[:1]]), others[1:], tops)
        self._bases, self._value, self._outside_share = bases, found.theta, None

    def _forget_other_networks(self, size: int, like: Tensor) -> None:
        known = None if self._memory is None else self._memory.starts
        if known is not None and (known.shape[1], known.dtype, known.device) != (size, like.dtype, like.device):
            self._memory = None

    def _first(
        self, gradient: Sequence[Tensor] | None, inputs: PrincipalInputs | None, reduction: Reduction | None
    ) -> Tensor | None:
        """Rows to start from; None where there are none."""
        if self._memory is not None:
            return self._memory.starts
        if gradient is None:
            return None
        if inputs is None or reduction is None:
            return flatten(gradient)[None]
        return reduction.restrict(flatten([inputs.on_axes(gradient[0]), *gradient[1:]])[None])

    def _remember(self, vectors: Tensor) -> None:
        """Predict the next top vector: its last move once more, by as much as that repeated the move before.

        On smooth stretches moves repeat; at the edge of stability, where steps alternate, they are undone.
        """
        top = vectors[:1]
        tops = top if self._memory is None else torch.cat([top, self._memory.tops[:2]])
        tops = torch.where(tops @ top[0] < 0, -1, 1).to(tops)[:, None] * tops
        predicted = top
        if len(tops) == 3:
            move, before = tops[0] - tops[1], tops[1] - tops[2]
            length = float(before @ before)
            repeated = float(move @ before) / length if length > 0 else 0.0
            predicted = top + min(1.0, max(-1.0, repeated)) * move
        self._memory = _Memory(torch.cat([predicted, vectors[1:2]]), vectors[2:], tops)

    def _search(self, space: Subspace, starts: Tensor | None, size: int, like: Tensor) -> bool:
        """Extend the space until its top vector has converged; whether the guard had to act."""
        cold = self._memory is None
        if starts is not None:
            space.extend(starts)
        if cold or self._steps % PROBE_EVERY == 0:
            self._probe(space, COLD if cold else PROBE, like)
        guard, looks = False, 0
        while space.dimensions < min(size, MOST_DIMENSIONS):
            values, coordinates = space.ritz()
            theta = float(values[0])
            residual = _residual(space, coordinates[0], theta)
            relative = _length(residual) / theta if theta > 0 else 0.0
            rho = max(0.0, float(values[1])) / theta if theta > 0 and len(values) > 1 else 0.0
            if relative > 4 * self.tol or not self._converged(relative, rho):
                if not space.extend(residual[None]):
                    self._probe(space, 1, like)
                continue
            if not cold and looks < MOST_LOOKS and len(values) > 1:
                second = float(values[1])
                residual = _residual(space, coordinates[1], second)
                looks += 1
                if second + _length(residual) > theta and space.extend(residual[None]):
                    continue
            if cold or guard or abs(theta - self._value) <= JUMP * self._value:
                break
            guard = True
            added = 0 if self._memory is None else space.extend(self._memory.third)
            self._probe(space, PROBE - added, like)
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
        return {
            "memory": None if self._memory is None else tuple(self._memory),
            "bases": self._bases,
            "outside_share": self._outside_share,
            "coordinates": self._coordinates,
            "hidden_whole": self._hidden_whole,
            "value": self._value,
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._memory = None if state["memory"] is None else _Memory(*state["memory"])
        self._bases, self._enriched = state["bases"], None
        self._outside_share, self._coordinates = state["outside_share"], state["coordinates"]
        self._hidden_whole = state["hidden_whole"]
        self._value, self._steps = state["value"], state["steps"]


class _Memory(NamedTuple):
    """What a search leaves to the next, rows on the directions of the search.

    Attributes:
        starts: where the next begins: the prediction of the top vector, and the second Ritz vector, if any.
        third: the third Ritz vector, [1, d]; no row where there is none.
        tops: the top vectors of the last steps, newest first.
    """

    starts: Tensor
    third: Tensor
    tops: Tensor

    def turned(self, whole: LinearizedPerceptron, before: Bases, after: Bases) -> "_Memory":
        """The same on other bases."""
        rows = turned(torch.cat(self), whole, before, after)
        return _Memory(*rows.split([len(part) for part in self]))


class _Found(NamedTuple):
    """What a search found.

    Attributes:
        theta, second: the two largest Ritz values.
        vectors: their unit vectors, rows on the input directions of the search.
        image: G v of the first in all directions, [1, d].
        beside: length of what lies of it outside the directions of the search.
        unseen: bound on the share of the value that all the inputs' axes leave out.
        faint: estimate of the share that the faint axes hold, where the leading ones are used.
        guard: the guard had to act.
        products: products spent.
    """

    theta: float
    second: float
    vectors: Tensor
    image: Tensor
    beside: float
    unseen: float
    faint: float
    guard: bool
    products: int


def _residual(space: Subspace, coordinates: Tensor, value: float) -> Tensor:
    """A v - value v for a vector of the space, [d]."""
    return (coordinates @ space.images).sub_(coordinates @ space.basis, alpha=value)


def _length(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
