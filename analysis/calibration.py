"""Calibration metrics, each once, batched: arrays [..., n] in, [...] out, so a whole trajectory is one call.

``confidence`` holds floats in [0, 1] and ``correct`` bools (or fractions), both [..., n]; `top_label` makes them
from logits or probabilities, `positive_class` makes the other binary convention. Sums are in float64; a batch gives
bit for bit what its rows give one by one. Bad input raises `InputError`, a bad option `SettingError`; nothing is
guessed, clipped or skipped. What the options ``binning``, ``closed`` and ``ties`` mean stands in `analysis.binning`.

Binned metrics are here; this module is also the one name for the others.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from analysis.binning import Binning, BinSums, Index, Side, Ties, assign, check_rules, choose, edges, width_gaps
from analysis.bootstrap import Interval, bootstrap
from analysis.kernel_calibration import kce, skce, smooth_ece, weighted_kce
from analysis.plugins import SettingError
from analysis.predictions import (
    Array,
    Floats,
    InputError,
    as_array,
    as_labels,
    as_rows,
    as_scores,
    per_row,
    positive_class,
    probabilities_of,
    top_label,
)
from analysis.proper_scores import (
    BrierDecomposition,
    CalibrationRefinement,
    brier,
    brier_decomposition,
    calibration_refinement,
    confidence_brier_decomposition,
    confidence_refinement,
    nll,
)
from analysis.selective import aurc, selective_risk
from analysis.soft_binning import soft_ece
from analysis.temperature import fit_temperature

__all__ = [
    "BrierDecomposition",
    "CalibrationRefinement",
    "InputError",
    "Interval",
    "Reliability",
    "accuracy",
    "aurc",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "calibration_refinement",
    "classwise_ece",
    "confidence_brier_decomposition",
    "confidence_gap",
    "confidence_refinement",
    "ece",
    "fit_temperature",
    "kce",
    "mce",
    "mean_absolute_gap",
    "mean_confidence",
    "nll",
    "positive_class",
    "reliability",
    "selective_risk",
    "skce",
    "smooth_ece",
    "soft_ece",
    "top_label",
    "weighted_kce",
]

Norm = Literal["l1", "l2", "max"]
_LONG_ROW = 1000
"""Rows of fewer samples are cheaper all together than one by one."""


def ece(
    confidence: ArrayLike,
    correct: ArrayLike,
    bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
    closed: Side = "right",
    debias: bool = False,
    ties: Ties = "together",
) -> Floats:
    """Expected calibration error: distance of accuracy from mean confidence, bin by bin.

    With n_b samples in bin b and gap_b = accuracy_b - confidence_b (means over the bin, not its midpoint):
    "l1" is sum_b (n_b/n) |gap_b| (Naeini et al. 2015, Guo et al. 2017), "l2" is
    (sum_b (n_b/n) gap_b^2)^{1/2}, "max" is max_b |gap_b|, the MCE. Empty bins weigh nothing.

    Args:
        confidence: floats in [0, 1], [..., n].
        correct: bools or numbers in [0, 1], [..., n].
        bins: number of bins M.
        binning: "width" or "mass" (also called adaptive).
        norm: "l1", "l2" or "max".
        closed: the bin to which an edge belongs.
        debias: with "l2", subtract from each gap_b^2 the variance of accuracy_b, accuracy_b (1 - accuracy_b) /
            (n_b - 1) (Kumar, Liang and Ma 2019, arXiv 1909.10155); a bin of one sample has no variance and
            counts 0, and a negative total is 0.
        ties: rule of equal-mass bins.

    Returns:
        [...], in [0, 1]; the "l1" is at most mean |correct - confidence|.

    Raises:
        InputError: NaN, out of range, empty, mismatched lengths, exchanged arguments.
        SettingError: an option that does not exist, or ``debias`` without "l2".
    """
    choose("norm", norm, ("l1", "l2", "max"))
    if debias and norm != "l2":
        raise SettingError(f"debias = True with norm = {norm!r}; accepted: norm = 'l2'")
    check_rules(bins, binning, closed, ties)
    if binning == "width" and norm == "l1":
        c, outcome, shape = as_rows(confidence, correct)
        gap = width_gaps(c, outcome, bins, closed) if c.shape[-1] >= _LONG_ROW else None
        if gap is not None:
            return per_row(np.abs(gap).sum(axis=-1) / c.shape[-1], shape)
    c, a, shape = as_scores(confidence, correct)
    index, a = assign(c, a, bins, binning, closed, ties)
    sums = BinSums(index, bins)
    return per_row(_norm(sums, sums(a - c), a, norm, debias), shape)


def _norm(sums: BinSums, gap: Floats, a: Floats, norm: Norm, debias: bool) -> Floats:
    """The error of each row from the sums of a - c over bins, [rows, bins]."""
    n = a.shape[-1]
    if norm == "l1":
        return np.asarray(np.abs(gap).sum(axis=-1) / n)
    count = sums.counts()
    filled = np.maximum(count, 1)
    if norm == "max":
        return np.asarray(np.abs(gap / filled).max(axis=-1))
    square = (gap / filled) ** 2
    if debias:
        square = np.where(count > 1, square - _variance_of_mean(sums, a, count), 0)
    return np.asarray(np.sqrt(np.maximum((count * square).sum(axis=-1) / n, 0)))


def _variance_of_mean(sums: BinSums, a: Floats, count: Index) -> Floats:
    mean = sums(a) / np.maximum(count, 1)
    spread = sums(a**2) / np.maximum(count, 1) - mean**2
    return np.asarray(np.maximum(spread, 0) / np.maximum(count - 1, 1))


def mce(
    confidence: ArrayLike,
    correct: ArrayLike,
    bins: int = 15,
    binning: Binning = "width",
    closed: Side = "right",
    ties: Ties = "together",
) -> Floats:
    """Maximum calibration error: the largest |accuracy_b - confidence_b|, unweighted. See `ece`."""
    return ece(confidence, correct, bins, binning, "max", closed, ties=ties)


def classwise_ece(
    values: ArrayLike,
    labels: ArrayLike,
    *,
    from_logits: bool,
    bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
    closed: Side = "right",
    ties: Ties = "together",
) -> Floats:
    """Mean over all K classes of the `ece` of P(y = k) (Kull et al. 2019, arXiv 1910.12656), seen or not.

    Args:
        values: logits or probabilities [..., n, K].
        labels: integers [..., n].
        from_logits: whether ``values`` are logits.
        bins, binning, norm, closed, ties: as in `ece`.

    Returns:
        [...], in [0, 1].
    """
    p = probabilities_of(values, from_logits=from_logits)
    y = as_labels(labels, p.shape)
    classes = [ece(p[..., k], y == k, bins, binning, norm, closed, ties=ties) for k in range(p.shape[-1])]
    return per_row(np.stack(classes, axis=-1).sum(axis=-1) / len(classes), p.shape[:-2])


def accuracy(correct: ArrayLike) -> Floats:
    """Share of correct predictions, [...]."""
    outcomes = as_array(correct, "correct")
    _, a, shape = as_scores(np.zeros(outcomes.shape), outcomes)
    return per_row(a.mean(axis=-1), shape)


def mean_confidence(confidence: ArrayLike) -> Floats:
    """Mean confidence, [...]."""
    given = as_array(confidence, "confidence")
    c, _, shape = as_scores(given, np.zeros(given.shape, dtype=bool))
    return per_row(c.mean(axis=-1, dtype=np.float64), shape)


def confidence_gap(confidence: ArrayLike, correct: ArrayLike) -> Floats:
    """Mean confidence minus accuracy, [...]: > 0 is overconfident. Its absolute value is at most the ECE."""
    c, a, shape = as_scores(confidence, correct)
    return per_row((c - a).mean(axis=-1), shape)


def mean_absolute_gap(confidence: ArrayLike, correct: ArrayLike) -> Floats:
    """Mean |correct - confidence|, [...]: at least the ECE over any bins (link L1 of the paper's chain)."""
    c, a, shape = as_scores(confidence, correct)
    return per_row(np.abs(a - c).mean(axis=-1), shape)


@dataclass(frozen=True)
class Reliability:
    """The table behind a reliability diagram; arrays [..., bins], NaN for what an empty bin does not have.

    Attributes:
        lower, upper: least and greatest confidence in the bin with equal mass, the bin's edges with equal width.
        count: samples in the bin.
        confidence: their mean confidence.
        accuracy: their accuracy.
    """

    lower: Floats
    upper: Floats
    count: Index
    confidence: Floats
    accuracy: Floats

    @property
    def gap(self) -> Floats:
        """Mean confidence minus accuracy: > 0 is overconfident."""
        return self.confidence - self.accuracy

    def to_frame(self) -> pd.DataFrame:
        """One row per bin; with leading axes, one per entry (flattened, column ``row``) and bin."""
        bins = self.count.shape[-1]
        rows = self.count.size // bins
        columns: dict[str, Array] = {"row": np.repeat(np.arange(rows), bins)} if self.count.ndim > 1 else {}
        columns["bin"] = np.tile(np.arange(bins), rows)
        for name in ("lower", "upper", "count", "confidence", "accuracy", "gap"):
            columns[name] = getattr(self, name).ravel()
        return pd.DataFrame(columns)


def reliability(
    confidence: ArrayLike,
    correct: ArrayLike,
    bins: int = 15,
    binning: Binning = "width",
    closed: Side = "right",
    ties: Ties = "together",
) -> Reliability:
    """Count, mean confidence and accuracy of each bin; arguments as in `ece`."""
    c, a, shape = as_scores(confidence, correct)
    index, a = assign(c, a, bins, binning, closed, ties)
    sums = BinSums(index, bins)
    count = sums.counts()
    size = np.where(count > 0, count, np.nan)
    if binning == "width":
        bound = np.broadcast_to(edges(bins, np.float64), (len(c), bins + 1))
        lower, upper = bound[:, :-1], bound[:, 1:]
    else:
        lower, upper = _ends(c, index, bins)
    wide = (*shape, bins)
    return Reliability(
        lower.reshape(wide),
        upper.reshape(wide),
        count.reshape(wide),
        (sums(c) / size).reshape(wide),
        (sums(a) / size).reshape(wide),
    )


def _ends(c: Array, index: Index, bins: int) -> tuple[Floats, Floats]:
    lower = np.full((len(c), bins), np.inf)
    upper = np.full((len(c), bins), -np.inf)
    rows = np.broadcast_to(np.arange(len(c))[:, None], index.shape)
    np.minimum.at(lower, (rows, index), c)
    np.maximum.at(upper, (rows, index), c)
    return np.where(lower <= upper, lower, np.nan), np.where(lower <= upper, upper, np.nan)
