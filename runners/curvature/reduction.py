"""The directions of a perceptron's inputs, layer by layer, on which its curvature is searched."""

from typing import NamedTuple

import torch
from torch import Tensor

from runners.curvature.inputs import PrincipalInputs
from runners.curvature.perceptron import LinearizedPerceptron

# Directions kept of a hidden layer's inputs; a layer with fewer than twice as many inputs or outputs is taken whole.
HIDDEN_RANK = 40

Bases = list[Tensor | None]


class Reduction(NamedTuple):
    """A perceptron whose weights move on some directions of its layers' inputs: dW = A Q^T.

    Attributes:
        whole: the linearisation in all directions, the first layer's inputs on their axes.
        reduced: the linearisation on these.
        bases: orthonormal columns Q [deep, r] of each layer; None where the layer is taken whole.
    """

    whole: LinearizedPerceptron
    reduced: LinearizedPerceptron
    bases: Bases

    @classmethod
    def of(cls, whole: LinearizedPerceptron, inputs: PrincipalInputs, hidden: Bases) -> "Reduction":
        """Reduce the first layer to the basis of ``inputs`` and the layers after it to the columns ``hidden``."""
        layers = zip(whole.inputs[1:], hidden, strict=True)
        coordinates = [h if basis is None else h @ basis for h, basis in layers]
        return cls(whole, whole.with_inputs([inputs.coordinates, *coordinates]), [inputs.basis, *hidden])

    def restrict(self, rows: Tensor) -> Tensor:
        """Rows of the whole -> their coordinates on the directions."""
        return turned(rows, self.whole, [None] * len(self.bases), self.bases)

    def outside(self, rows: Tensor) -> Tensor:
        """What the directions leave out of rows of the whole."""
        return rows - turned(self.restrict(rows), self.whole, self.bases, [None] * len(self.bases))


def turned(rows: Tensor, whole: LinearizedPerceptron, before: Bases, after: Bases) -> Tensor:
    """Rows on one list of bases -> their coordinates on another.

    Args:
        rows: [k, d'], weights on ``before``.
        whole: the linearisation in all directions.
        before, after: of each layer, orthonormal columns [deep, r]; None for all directions.
    """
    parts, at = [], 0
    for (wide, deep), biased, old, new in zip(whole.shapes, whole.biased, before, after, strict=True):
        rank = deep if old is None else old.shape[1]
        weight = rows[:, at : at + wide * rank].reshape(-1, wide, rank)
        at += wide * rank
        if old is None or new is None:
            basis = new if old is None else old.T
            weight = weight if basis is None else weight @ basis
        elif not torch.equal(old, new):
            weight = weight @ (old.T @ new)
        parts.append(weight.flatten(1))
        if biased:
            parts.append(rows[:, at : at + wide])
            at += wide
    return torch.cat(parts, 1)


def fits(bases: Bases, whole: LinearizedPerceptron) -> bool:
    """Whether these are bases of this network's layers."""
    if len(bases) != len(whole.shapes):
        return False
    like = whole.inputs[0]
    for basis, (_, deep) in zip(bases, whole.shapes, strict=True):
        if basis is not None and (len(basis), basis.dtype, basis.device) != (deep, like.dtype, like.device):
            return False
    return True


def leading(perceptron: LinearizedPerceptron, before: Bases | None) -> Bases:
    """Leading directions [deep, r] of the inputs of each layer after the first, or None: the layer is taken whole.

    Args:
        perceptron: the network at a point.
        before: what this function gave at the point before, from which one subspace iteration goes on.
    """
    found: Bases = []
    for layer, (wide, deep) in list(enumerate(perceptron.shapes))[1:]:
        if min(wide, deep) < 2 * HIDDEN_RANK:
            found.append(None)
            continue
        h = perceptron.inputs[layer]
        start = None if before is None else before[layer - 1]
        if start is None:
            start = torch.linalg.eigh((h.T @ h).double())[1][:, -HIDDEN_RANK:].to(h)
        found.append(torch.linalg.qr(h.T @ (h @ start)).Q)
    return found
