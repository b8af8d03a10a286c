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
    predicted class's score, which pools all classes and so needs fewer samples. The other classes share what its
    rate leaves in their old proportions, evened out just so far that none of them passes the rate.

    May change the argmax. With "one_vs_rest" classes have different maps; with "top_label" only a rate below 1/K
    does it, which says that the predicted class is not the likeliest.

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
    """Probabilities with ``rate`` [n] for the class ``top`` [n], the rest shared after ``p`` [n, K]."""
    others = p.copy()
    np.put_along_axis(others, top[:, None], 0.0, axis=-1)
    left = others.sum(axis=-1, keepdims=True)
    even = (np.arange(p.shape[-1]) != top[:, None]) / (p.shape[-1] - 1)
    # A saturated softmax leaves nothing to share in proportion.
    share = np.where(left > 0, others / np.where(left > 0, left, 1), even)
    # A share q becomes q + mix (even - q), with the least mix in [0, 1] that keeps the largest below the rate: a
    # softmax that was too sure gives the second class nearly all of the rest.
    rest = (1 - rate)[:, None]
    largest = share.max(axis=-1, keepdims=True)
    excess = np.maximum(rest * largest - (1 - 1e-9) * rate[:, None], 0)
    reach = rest * (largest - even.max(axis=-1, keepdims=True))
    mix = np.minimum(np.divide(excess, reach, out=np.zeros_like(excess), where=reach > 0), 1)
    spread = rest * (share + mix * (even - share))
    np.put_along_axis(spread, top[:, None], rate[:, None], axis=-1)
    return np.asarray(spread)
