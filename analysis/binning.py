"""Bins of confidence: which sample lies in which, and sums over them.

Edges. Bin b of M has the edges b/M and (b+1)/M, each rounded to the confidence's own type, and comparisons with
them are exact: 0.3 in float32 and 0.3 in float64 are both the edge 3/10. With ``closed="right"`` an edge belongs to
the bin below it, with "left" to the bin above; 0 is always in the first bin and 1 in the last.

Equal mass. The sorted samples are cut into M parts whose sizes differ by at most one, the larger first. Samples of
equal confidence are not told apart: with ``ties="together"`` they all go to the lowest bin that one of them reaches
(the highest with ``closed="left"``); with "average" the cut goes through them, and each carries their mean outcome.
"""

from typing import Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from analysis.plugins import SettingError
from analysis.predictions import Array, Floats

Binning = Literal["width", "mass"]
Side = Literal["right", "left"]
Ties = Literal["together", "average"]
Index = NDArray[np.int64]


def choose(setting: str, value: str, accepted: tuple[str, ...]) -> None:
    """Raises SettingError unless ``value`` is one of ``accepted``."""
    if value not in accepted:
        raise SettingError(f"{setting} = {value!r}; accepted: {', '.join(map(repr, accepted))}")


def check_count(setting: str, value: int) -> None:
    """Raises SettingError unless ``value`` is a whole number >= 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise SettingError(f"{setting} = {value!r}; expected a whole number >= 1")


def edges(bins: int, dtype: DTypeLike) -> Array:
    """The edges 0, 1/M, ..., 1 of equal-width bins, each the nearest value of ``dtype``."""
    return (np.arange(bins + 1) / bins).astype(dtype)


class WidthIndex:
    """Equal-width bins of rows of one shape and type, found without a search and in memory that is used again.

    A score c above the edge e = round(k/M) is above k/M itself, because e is the nearest value to it; so the rounded
    product c M is at least k. Hence floor(c M) is never too low for right-closed bins, and too high only by one,
    where c is not above the edge it names: one comparison settles it. Likewise ceil(c M) - 1, which is never too
    high, for left-closed bins.

    A score below 0 or NaN gets a negative bin (numpy complains of NaN), a score above 1 a bin >= M. What a call returns
    is overwritten by the next one.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, bins: int, closed: Side) -> None:
        self.right = closed == "right"
        # A product in float16 could round too far.
        self.dtype = np.result_type(dtype, np.float32)
        self.bins = self.dtype.type(bins)
        self.edges = edges(bins, dtype).astype(self.dtype)
        # The outer edges turn nothing in [0, 1] away: 0 is in the first bin, 1 in the last.
        if self.right:
            self.edges[0] = np.nextafter(self.edges[0], self.dtype.type(-1))
        else:
            self.edges[-1] = 2
        self.product, self.edge = np.empty(shape, self.dtype), np.empty(shape, self.dtype)
        self.index, self.moved = np.empty(shape, np.int64), np.empty(shape, bool)

    def __call__(self, confidence: Array) -> Index:
        np.multiply(confidence, self.bins, out=self.product, dtype=self.dtype)
        if not self.right:
            np.ceil(self.product, out=self.product)
        np.copyto(self.index, self.product, casting="unsafe")
        np.take(self.edges, self.index, out=self.edge, mode="clip")
        if self.right:
            np.less_equal(confidence, self.edge, out=self.moved)
            return np.subtract(self.index, self.moved, out=self.index) if self.moved.any() else self.index
        self.index -= 1
        np.greater_equal(confidence, self.edge, out=self.moved)
        return np.add(self.index, self.moved, out=self.index)


def width_index(confidence: Array, bins: int, closed: Side) -> Index:
    """Equal-width bin of each entry, in the shape of ``confidence``."""
    return WidthIndex(confidence.shape, confidence.dtype, bins, closed)(confidence)


def width_gaps(confidence: Array, correct: Array, bins: int, closed: Side) -> Floats | None:
    """Sums of correct - confidence over equal-width bins, [rows, bins], of long rows [rows, n] of any types.

    Row by row, so that all of a row's work stays in cache: several times faster than whole arrays at a time. None
    if an entry is outside [0, 1].
    """
    if correct.dtype.kind != "b" and not (correct.min() >= 0 and correct.max() <= 1):
        return None
    find = WidthIndex(confidence.shape[1:], confidence.dtype, bins, closed)
    gap = np.empty(confidence.shape[1:])
    found = np.empty((len(confidence), bins))
    with np.errstate(invalid="ignore"):
        for row, (c, a) in enumerate(zip(confidence, correct, strict=True)):
            np.copyto(gap, a)
            np.subtract(gap, c, out=gap)
            try:
                sums = np.bincount(find(c), gap, minlength=bins)
            except ValueError:
                return None
            if len(sums) > bins:
                return None
            found[row] = sums
    return found


def _tie_ends(ordered: Array) -> tuple[Index, Index]:
    """First and last position of each entry's tie in rows [r, n] sorted along the last axis."""
    n = ordered.shape[-1]
    position = np.broadcast_to(np.arange(n), ordered.shape)
    starts = np.ones(ordered.shape, dtype=bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    ends = np.ones(ordered.shape, dtype=bool)
    ends[:, :-1] = starts[:, 1:]
    first = np.maximum.accumulate(np.where(starts, position, 0), axis=-1)
    last = np.minimum.accumulate(np.where(ends, position, n)[:, ::-1], axis=-1)[:, ::-1]
    return first, last


def tie_means(ordered: Array, values: Floats) -> Floats:
    """``values`` [r, n] with each tie of ``ordered`` [r, n], sorted along its rows, replaced by its mean."""
    first, last = _tie_ends(ordered)
    group = first + values.shape[-1] * np.arange(len(values))[:, None]
    sums = np.bincount(group.ravel(), weights=values.ravel(), minlength=values.size)
    return np.asarray(sums[group] / (last - first + 1))


def mass_bins(confidence: Array, correct: Floats, bins: int, closed: Side, ties: Ties) -> tuple[Index, Floats]:
    """Equal-mass bin of each sample of rows [r, n], and the outcome that it carries."""
    n = confidence.shape[-1]
    order = np.argsort(confidence, axis=-1, kind="stable")
    ordered = np.take_along_axis(confidence, order, axis=-1)
    size, larger = divmod(n, bins)
    part = np.repeat(np.arange(bins), size + (np.arange(bins) < larger))
    if ties == "together":
        first, last = _tie_ends(ordered)
        placed, carried = part[first if closed == "right" else last], correct
    else:
        placed = np.broadcast_to(part, ordered.shape)
        means = tie_means(ordered, np.take_along_axis(correct, order, axis=-1))
        carried = np.empty_like(correct)
        np.put_along_axis(carried, order, means, axis=-1)
    index = np.empty_like(order)
    np.put_along_axis(index, order, placed, axis=-1)
    return index, carried


def check_rules(bins: int, binning: Binning, closed: Side, ties: Ties) -> None:
    """Raises SettingError for a count below 1, or a rule that does not exist."""
    check_count("bins", bins)
    choose("binning", binning, ("width", "mass"))
    choose("closed", closed, ("right", "left"))
    choose("ties", ties, ("together", "average"))


def assign(
    confidence: Array, correct: Floats, bins: int, binning: Binning, closed: Side, ties: Ties
) -> tuple[Index, Floats]:
    """Bin of each sample of rows [r, n], in 0 to bins - 1, and the outcome that it carries.

    Raises:
        SettingError: see `check_rules`.
    """
    check_rules(bins, binning, closed, ties)
    if binning == "mass":
        return mass_bins(confidence, correct, bins, closed, ties)
    return width_index(confidence, bins, closed), correct


class BinSums:
    """Sums over the bins of rows [r, n]: each call gives [r, bins]."""

    def __init__(self, index: Index, bins: int) -> None:
        self.rows, self.bins = len(index), bins
        self.cells = (index + bins * np.arange(self.rows)[:, None]).ravel()

    def __call__(self, values: Array) -> Floats:
        sums = np.bincount(self.cells, weights=values.ravel(), minlength=self.rows * self.bins)
        return np.asarray(sums.reshape(self.rows, self.bins), dtype=np.float64)

    def counts(self) -> Index:
        return np.bincount(self.cells, minlength=self.rows * self.bins).reshape(self.rows, self.bins)
