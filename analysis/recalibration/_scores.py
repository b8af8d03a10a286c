"""Methods that map a score to a rate: what carries them from two classes to K."""

from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np

from analysis.predictions import Array, Floats, softmax
from analysis.recalibration import Parameters, Recalibration


class ScoreRecalibration(Recalibration):
    """A map of a score to a rate, fitted to binary outcomes.

    "one_vs_rest" (Zadrozny and Elkan 2002; Guo et al. 2017) fits one map to each class's score and divides the K
    rates by their sum; where all are 0 the uncalibrated probabilities stay. "top_label" fits one map to the
    predicted class's score, and the other classes share what its rate leaves, in their old proportions. It pools
    all classes, so it needs fewer samples.

    May change the argmax, with either: classes have different maps, and a rate can fall below what is left for the
    second class.

    Attributes:
        classes: how K classes are made of two.
    """

    preserves_argmax: ClassVar[bool] = False
    classes: Literal["one_vs_rest", "top_label"] = "one_vs_rest"

    @abstractmethod
    def fit_scores(self, scores: Floats, outcomes: Floats) -> Parameters:
        """The map from scores [n] to outcomes (0 or 1) [n]."""

    @abstractmethod
    def apply_scores(self, parameters: Parameters, scores: Floats) -> Floats:
        """Rates in [0, 1] of scores [n]."""

    def scores_of(self, logits: Floats) -> Floats:
        """The score of each class, [n, K]: its probability, unless the method overrides it."""
        return softmax(logits)

    def _fit(self, logits: Floats, labels: Array) -> Parameters:
        scores = self.scores_of(logits)
        if self.classes == "top_label":
            top = logits.argmax(axis=-1)
            maps = [self.fit_scores(_of(scores, top), (top == labels).astype(np.float64))]
        else:
            maps = [self.fit_scores(column, (labels == k).astype(np.float64)) for k, column in enumerate(scores.T)]
        return {name: _stack([each[name] for each in maps]) for name in maps[0]}

    def _apply(self, parameters: Parameters, logits: Floats) -> Floats:
        scores, p = self.scores_of(logits), softmax(logits)
        if self.classes == "top_label":
            top = logits.argmax(axis=-1)
            return _spread(self.apply_scores(_row(parameters, 0), _of(scores, top)), top, p)
        rates = np.stack([self.apply_scores(_row(parameters, k), column) for k, column in enumerate(scores.T)], -1)
        total = rates.sum(axis=-1, keepdims=True)
        return np.where(total > 0, rates / np.where(total > 0, total, 1), p)


def _of(scores: Floats, top: Array) -> Floats:
    return np.take_along_axis(scores, top[:, None], axis=-1)[:, 0]


def _row(parameters: Parameters, k: int) -> Parameters:
    return {name: value[k] for name, value in parameters.items()}


def _stack(maps: list[Floats]) -> Floats:
    """One row per map; a shorter one repeats its last entry, which adds no knot."""
    longest = max(value.size for value in maps)
    if maps[0].ndim == 0:
        return np.stack(maps)
    return np.stack([np.pad(value, (0, longest - value.size), mode="edge") for value in maps])


def _spread(rate: Floats, top: Array, p: Floats) -> Floats:
    """Probabilities with ``rate`` [n] for the class ``top`` [n] and the rest in the proportions of ``p`` [n, K]."""
    others = p.copy()
    np.put_along_axis(others, top[:, None], 0.0, axis=-1)
    left = others.sum(axis=-1, keepdims=True)
    # A saturated softmax leaves nothing to share in proportion: share alike.
    alike = (np.arange(p.shape[-1]) != top[:, None]) / (p.shape[-1] - 1)
    spread = (1 - rate)[:, None] * np.where(left > 0, others / np.where(left > 0, left, 1), alike)
    np.put_along_axis(spread, top[:, None], rate[:, None], axis=-1)
    return np.asarray(spread)
