"""Selective prediction: the risk of answering only where confidence is high. Use `analysis.calibration`."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from analysis.binning import choose, tie_means
from analysis.plugins import SettingError
from analysis.predictions import Floats, as_scores, per_row


def _risks(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, tuple[int, ...]]:
    """Expected error rate among the k most confident samples, k = 1 to n, [rows, n], and the leading shape.

    Samples of equal confidence have no order: each carries their mean error, which is the mean over all orders.
    """
    c, a, shape = as_scores(confidence, correct)
    order = np.argsort(c, axis=-1, kind="stable")
    errors = tie_means(np.take_along_axis(c, order, axis=-1), 1 - np.take_along_axis(a, order, axis=-1))
    return np.cumsum(errors[:, ::-1], axis=-1) / np.arange(1, c.shape[-1] + 1), shape


def aurc(confidence: ArrayLike, correct: ArrayLike, rule: Literal["mean", "trapezoid"] = "mean") -> Floats:
    """Area under the risk-coverage curve (Geifman, Uziel and El-Yaniv 2019, arXiv 1805.08206), ties averaged.

    Args:
        confidence: floats in [0, 1], [..., n]; only their order counts.
        correct: bools or numbers in [0, 1], [..., n].
        rule: "mean" of the risks at coverage 1/n, 2/n, ..., 1; "trapezoid" joins them by lines, over n - 1
            intervals of width 1/(n - 1).

    Returns:
        [...], in [0, 1].
    """
    choose("rule", rule, ("mean", "trapezoid"))
    risks, shape = _risks(confidence, correct)
    if rule == "mean" or risks.shape[-1] == 1:
        return per_row(risks.mean(axis=-1), shape)
    return per_row(((risks[:, 1:] + risks[:, :-1]) / 2).mean(axis=-1), shape)


def selective_risk(confidence: ArrayLike, correct: ArrayLike, coverage: float) -> Floats:
    """Expected error rate among the most confident samples.

    Args:
        confidence: floats in [0, 1], [..., n].
        correct: bools or numbers in [0, 1], [..., n].
        coverage: share of samples that are answered, in (0, 1]; ceil(coverage n) of them are.

    Returns:
        [...], in [0, 1]. At coverage 1, 1 - accuracy.
    """
    if not 0 < coverage <= 1:
        raise SettingError(f"coverage = {coverage!r}; expected a number in (0, 1]")
    risks, shape = _risks(confidence, correct)
    n = risks.shape[-1]
    # 0.07 * 100 is 7.000000000000001: a whole number but for rounding is that number.
    answered = max(1, int(np.ceil(coverage * n * (1 - 4 * np.finfo(np.float64).eps))))
    return per_row(risks[:, answered - 1], shape)
