"""Proper scores and their decompositions. Use them as `analysis.calibration.nll` and so on."""

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy

from analysis.binary_fits import isotonic_knots
from analysis.binning import Binning, BinSums, Side, assign, choose
from analysis.margins import log_p_true
from analysis.predictions import (
    Array,
    Floats,
    as_labels,
    as_logits,
    as_probabilities,
    as_scores,
    per_row,
    probabilities_of,
)
from analysis.temperature import fit_temperature


def nll(values: ArrayLike, labels: ArrayLike, *, from_logits: bool = True) -> Floats:
    """Negative log-likelihood, mean_i -log p_{i,y}, in nats; never clipped.

    Args:
        values: logits [..., n, K]; or, said so, probabilities.
        labels: integers [..., n].
        from_logits: whether ``values`` are logits. Logits keep what probabilities have lost: 200 where p_y is
            exp(-200).

    Returns:
        [...], >= 0; inf where a given probability of the label is 0.
    """
    if from_logits:
        log_p = log_p_true(values, labels)
        return per_row(-log_p.mean(axis=-1), log_p.shape[:-1])
    p = as_probabilities(values)
    p_true = np.take_along_axis(p, as_labels(labels, p.shape)[..., None], axis=-1)[..., 0]
    with np.errstate(divide="ignore"):
        return per_row(-np.log(p_true.astype(np.float64)).mean(axis=-1), p.shape[:-2])


def _onehot(y: Array, classes: int) -> Array:
    return np.asarray(y[..., None] == np.arange(classes))


def brier(values: ArrayLike, labels: ArrayLike, *, from_logits: bool, scale: Literal["sum", "half"] = "sum") -> Floats:
    """Brier score, mean_i sum_k (p_ik - [y_i = k])^2 (Brier 1950).

    Args:
        values: logits or probabilities [..., n, K].
        labels: integers [..., n].
        from_logits: whether ``values`` are logits.
        scale: "sum" over classes, in [0, 2]; "half" of it, in [0, 1], which for two classes is the squared
            error of P(y = 1).

    Returns:
        [...].
    """
    choose("scale", scale, ("sum", "half"))
    p = probabilities_of(values, from_logits=from_logits).astype(np.float64, copy=False)
    square = ((p - _onehot(as_labels(labels, p.shape), p.shape[-1])) ** 2).sum(axis=-1).mean(axis=-1)
    return per_row(square if scale == "sum" else square / 2, p.shape[:-2])


@dataclass(frozen=True)
class BrierDecomposition:
    """Brier = reliability - resolution + uncertainty + within_variance - within_covariance, exactly.

    The last two are what Murphy's three terms leave out when scores differ within a bin (Stephenson, Coelho and
    Jolliffe 2008). Arrays [...].

    Attributes:
        reliability: sum_b (n_b/n) (confidence_b - accuracy_b)^2; 0 is calibrated.
        resolution: sum_b (n_b/n) (accuracy_b - accuracy)^2; larger is better.
        uncertainty: variance of the outcome.
        within_variance: mean squared deviation of the score from its bin's mean.
        within_covariance: twice the mean product of the deviations of score and outcome from their bin's means.
    """

    reliability: Floats
    resolution: Floats
    uncertainty: Floats
    within_variance: Floats
    within_covariance: Floats

    @property
    def brier(self) -> Floats:
        """The score that the terms add up to."""
        return np.asarray(
            self.reliability - self.resolution + self.uncertainty + self.within_variance - self.within_covariance
        )


def confidence_brier_decomposition(
    confidence: ArrayLike,
    correct: ArrayLike,
    bins: int = 15,
    binning: Binning = "width",
    closed: Side = "right",
) -> BrierDecomposition:
    """Terms of mean (correct - confidence)^2; arguments as in `analysis.calibration.ece`."""
    c, a, shape = as_scores(confidence, correct)
    index, _ = assign(c, a, bins, binning, closed, "together")
    c = c.astype(np.float64, copy=False)
    sums = BinSums(index, bins)
    n, count = c.shape[-1], sums.counts()
    size = np.maximum(count, 1)
    score, outcome = sums(c) / size, sums(a) / size
    base = a.mean(axis=-1, keepdims=True)
    score_gap = c - np.take_along_axis(score, index, axis=-1)
    outcome_gap = a - np.take_along_axis(outcome, index, axis=-1)
    terms = (
        (count * (score - outcome) ** 2).sum(axis=-1) / n,
        (count * (outcome - base) ** 2).sum(axis=-1) / n,
        ((a - base) ** 2).mean(axis=-1),
        (score_gap**2).mean(axis=-1),
        2 * (score_gap * outcome_gap).mean(axis=-1),
    )
    return BrierDecomposition(*(per_row(term, shape) for term in terms))


def brier_decomposition(
    values: ArrayLike,
    labels: ArrayLike,
    *,
    from_logits: bool,
    scale: Literal["sum", "half"] = "sum",
    bins: int = 15,
    binning: Binning = "width",
    closed: Side = "right",
) -> BrierDecomposition:
    """Terms of `brier` with the same arguments: those of each P(y = k), summed over classes."""
    choose("scale", scale, ("sum", "half"))
    p = probabilities_of(values, from_logits=from_logits)
    y = as_labels(labels, p.shape)
    factor = 1.0 if scale == "sum" else 0.5
    classes = [confidence_brier_decomposition(p[..., k], y == k, bins, binning, closed) for k in range(p.shape[-1])]
    names = [field.name for field in fields(BrierDecomposition)]
    return BrierDecomposition(*(factor * sum(getattr(each, name) for each in classes) for name in names))


@dataclass(frozen=True)
class CalibrationRefinement:
    """A proper loss = calibration + refinement (Berta et al. 2025, arXiv 2501.19195). Arrays [...].

    Attributes:
        calibration: what recalibration takes off the loss, >= 0.
        refinement: the loss left after the best recalibration.
    """

    calibration: Floats
    refinement: Floats

    @property
    def loss(self) -> Floats:
        """The loss without recalibration."""
        return self.calibration + self.refinement


def calibration_refinement(logits: ArrayLike, labels: ArrayLike) -> CalibrationRefinement:
    """Split the NLL by the best temperature on the same samples, the paper's estimator for many classes.

    One fitted number makes the refinement too small by about 1/(2n) nats.

    Args:
        logits: [..., n, K].
        labels: integers [..., n].

    Returns:
        calibration and refinement [...], in nats.
    """
    temperature = fit_temperature(logits, labels)
    before = nll(logits, labels)
    after = nll(as_logits(logits) / temperature[..., None, None], labels)
    return CalibrationRefinement(before - after, after)


def confidence_refinement(
    confidence: ArrayLike, correct: ArrayLike, loss: Literal["brier", "nll"] = "brier"
) -> CalibrationRefinement:
    """Split the loss of the top label's confidence by the best monotone recalibration on the same samples.

    Isotonic regression is that recalibration for every proper loss at once (Dimitriadis, Gneiting and Jordan
    2021). It has many free values, so that the refinement is too small on few samples.

    Args:
        confidence: floats in [0, 1], [..., n].
        correct: bools or numbers in [0, 1], [..., n].
        loss: "brier" is mean (correct - confidence)^2, "nll" the binary log loss in nats, which is inf where a
            confidence of exactly 0 or 1 is wrong.

    Returns:
        calibration and refinement [...].
    """
    choose("loss", loss, ("brier", "nll"))
    c, a, shape = as_scores(confidence, correct)
    c = c.astype(np.float64, copy=False)
    best = np.stack([np.interp(score, *isotonic_knots(score, outcome)) for score, outcome in zip(c, a, strict=True)])
    before, after = _binary_loss(c, a, loss), _binary_loss(best, a, loss)
    return CalibrationRefinement(per_row(before - after, shape), per_row(after, shape))


def _binary_loss(p: Floats, a: Floats, loss: str) -> Floats:
    if loss == "brier":
        return np.asarray(((a - p) ** 2).mean(axis=-1))
    return np.asarray(-(xlogy(a, p) + xlogy(1 - a, 1 - p)).mean(axis=-1))
