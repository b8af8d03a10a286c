"""What a classifier says, checked and read: logits or probabilities, labels, and the top label's confidence.

Every calibration metric starts here. What the input is has to be said by the caller: nothing is concluded from
the values. float16 and bfloat16 are upcast before a softmax, which is taken in float64.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

_BLOCK = 4096
Floats = NDArray[np.float64]
Array = NDArray[Any]


class InputError(ValueError):
    """Input that has no metric: the sentence names what is wrong, where, its value and what is accepted."""


def as_array(values: ArrayLike, what: str) -> Array:
    """``values`` as a numpy array of numbers or bools; a tensor of any device, bfloat16 too.

    Raises:
        InputError: not numbers, ragged, or empty.
    """
    values = _from_tensor(values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what}: rows of unequal length or not an array ({error})") from None
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{what} is an array of {array.dtype}; expected real numbers")
    if array.size == 0:
        raise InputError(f"{what} is empty (shape {array.shape}); expected at least one sample")
    return array


def _from_tensor(values: Any) -> Any:
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    return tensor.float() if "bfloat16" in str(tensor.dtype) else tensor


def first(mask: Array) -> tuple[int, ...]:
    """Index of the first True."""
    return tuple(int(i) for i in np.unravel_index(np.argmax(mask), mask.shape))


def _place(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(index)


def check_range(array: Array, what: str, low: float, high: float, accepted: str) -> None:
    """Raises InputError unless every entry is in [low, high]; NaN is not."""
    if not (array.min() >= low and array.max() <= high):
        where = first(~((array >= low) & (array <= high)))
        raise InputError(f"{what} at {_place(where)} is {array[where]}; expected {accepted}")


def check_finite(array: Array, what: str) -> None:
    """Raises InputError where an entry is NaN or infinite."""
    finite = np.isfinite(array)
    if not finite.all():
        where = first(~finite)
        raise InputError(f"{what} at {_place(where)} is {array[where]}; expected a finite number")


def as_logits(logits: ArrayLike) -> Floats:
    """Logits [..., n, K] in float64.

    Raises:
        InputError: fewer than two axes or two classes, empty, NaN or infinite.
    """
    z = as_array(logits, "logits")
    _check_classes(z, "logits")
    check_finite(z, "logits")
    return z.astype(np.float64, copy=False)


def as_probabilities(probabilities: ArrayLike) -> Array:
    """Probabilities [..., n, K] in the float type they came in.

    A row may miss the sum 1 by 1e-5, or by K units of the type's precision if that is more.

    Raises:
        InputError: fewer than two axes or two classes, empty, NaN, outside [0, 1], or unnormalised.
    """
    p = as_array(probabilities, "probabilities")
    _check_classes(p, "probabilities")
    if p.dtype.kind != "f":
        p = p.astype(np.float64)
    check_range(p, "probability", 0, 1, "a number in [0, 1]")
    totals = np.einsum("...k->...", p, dtype=np.float64)
    wrong = np.abs(totals - 1) > max(1e-5, p.shape[-1] * float(np.finfo(p.dtype).eps))
    if wrong.any():
        where = first(wrong)
        raise InputError(f"probabilities of row {_place(where)} sum to {totals[where]}; expected 1")
    return p


def _check_classes(array: Array, what: str) -> None:
    if array.ndim < 2 or array.shape[-1] < 2:
        raise InputError(f"{what} have shape {array.shape}; expected [..., n, K] with K >= 2 classes")


def as_labels(labels: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Labels [..., n] as int64, broadcast to the rows ``shape[:-1]`` of logits or probabilities [..., n, K].

    Raises:
        InputError: not integers, a length other than n, or a label outside 0 to K - 1.
    """
    y = as_array(labels, "labels")
    if y.dtype.kind not in "iu":
        raise InputError(f"labels are {y.dtype}; expected integers")
    if y.ndim == 0 or y.shape[-1] != shape[-2]:
        raise InputError(f"{y.shape[-1] if y.ndim else 'a single'} labels for {shape[-2]} rows; expected one each")
    check_range(y, "label", 0, shape[-1] - 1, f"0 to {shape[-1] - 1}")
    try:
        return np.broadcast_to(y.astype(np.int64), shape[:-1])
    except ValueError:
        raise InputError(f"labels have shape {y.shape}; expected {shape[:-1]} or its last axes") from None


def logsumexp(values: Floats) -> Floats:
    """log sum exp along the last axis; entries may be -inf, but not all of a row."""
    top = values.max(axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(values - top).sum(axis=-1)))


def per_row(values: Array, shape: tuple[int, ...]) -> Floats:
    """Results of rows [r] in the leading shape of the input; for a single row a scalar, as numpy's reductions give."""
    return values.reshape(shape)[()]


def log_softmax(logits: Array) -> Floats:
    """Log-probabilities along the last axis, in float64."""
    z = logits.astype(np.float64)
    return np.asarray(z - logsumexp(z)[..., None])


def softmax(logits: Array) -> Floats:
    """Probabilities along the last axis, in float64."""
    p = logits.astype(np.float64)
    p -= p.max(axis=-1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=-1, keepdims=True)
    return p


def probabilities_of(values: ArrayLike, *, from_logits: bool) -> Array:
    """Checked probabilities [..., n, K] from logits (in float64) or from probabilities (as they came)."""
    return softmax(as_logits(values)) if from_logits else as_probabilities(values)


def top_label(
    values: ArrayLike, labels: ArrayLike, *, from_logits: bool, ties: Literal["first", "share"] = "first"
) -> tuple[Array, Array]:
    """Confidence and correctness of the predicted class: what `ece` and its kin compare.

    Args:
        values: logits or probabilities [..., n, K]; K is the number of columns, seen in the labels or not.
        labels: integers [..., n], or [n] for all.
        from_logits: whether ``values`` are logits.
        ties: "first" predicts the first of equal largest entries; "share" gives a label among t of them 1/t.

    Returns:
        confidence [..., n] in [0, 1], float64 from logits and in the type of given probabilities, which keeps
        a score of 0.3 on its bin's edge; correct [..., n], bool, or float64 with "share".

    Raises:
        InputError: NaN, infinite, unnormalised or empty input, mismatched lengths, a label out of range.
    """
    checked = as_logits(values) if from_logits else as_probabilities(values)
    y = as_labels(labels, checked.shape)
    if ties not in ("first", "share"):
        raise InputError(f"ties = {ties!r}; accepted: 'first', 'share'")
    rows = checked.reshape(-1, checked.shape[-1])
    confidence = np.empty(len(rows), np.float64 if from_logits else checked.dtype)
    correct = np.empty(len(rows), bool if ties == "first" else np.float64)
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        confidence[block], correct[block] = _top(rows[block], y.reshape(-1)[block], from_logits, ties)
    return confidence.reshape(checked.shape[:-1]), correct.reshape(checked.shape[:-1])


def _top(rows: Array, y: Array, from_logits: bool, ties: str) -> tuple[Array, Array]:
    """`top_label` of rows [r, K], worked class by class: reductions over a short last axis are slow."""
    columns = np.array(rows.T, order="C")
    top = columns.max(axis=0)
    # A tie is judged on what was given: a softmax can round two logits to one probability.
    is_top = columns == top
    tied = is_top.sum(axis=0)
    hit = is_top[y, np.arange(len(y))]
    if ties == "share":
        correct: Array = hit / tied
    else:
        correct = hit
        several = np.flatnonzero(tied > 1)
        correct[several] = rows[several].argmax(axis=-1) == y[several]
    if not from_logits:
        return top, correct
    columns -= top
    return 1 / np.exp(columns, out=columns).sum(axis=0), correct


def positive_class(values: ArrayLike, labels: ArrayLike, *, from_logits: bool) -> tuple[Array, Array]:
    """Score P(y = 1) and outcome y = 1 of a two-class problem: the other number called binary ECE.

    Args:
        values: logits or probabilities [..., n, 2].
        labels: 0 or 1, [..., n].
        from_logits: whether ``values`` are logits.

    Returns:
        score [..., n] in [0, 1], and outcome [..., n], bool.

    Raises:
        InputError: as `top_label`; or K other than 2.
    """
    p = probabilities_of(values, from_logits=from_logits)
    if p.shape[-1] != 2:
        raise InputError(f"positive_class: {p.shape[-1]} classes; expected 2")
    return p[..., 1], as_labels(labels, p.shape) == 1


def as_rows(confidence: ArrayLike, correct: ArrayLike) -> tuple[Array, Array, tuple[int, ...]]:
    """As `as_scores`, but ``correct`` keeps its type, and entries may lie outside [0, 1]."""
    c, a = as_array(confidence, "confidence"), as_array(correct, "correct")
    if c.dtype.kind != "f":
        raise InputError(f"confidence is an array of {c.dtype}; expected floats (was it exchanged with correct?)")
    try:
        if c.shape[-1] != a.shape[-1]:
            raise ValueError
        shape = np.broadcast_shapes(c.shape, a.shape)
    except (IndexError, ValueError):
        raise InputError(f"confidence has shape {c.shape}, correct {a.shape}; expected equal [..., n]") from None
    return _matrix(c, shape, c.dtype), _matrix(a, shape, a.dtype), shape[:-1]


def as_scores(confidence: ArrayLike, correct: ArrayLike) -> tuple[Array, NDArray[np.float64], tuple[int, ...]]:
    """Confidence and correctness as contiguous matrices [rows, n], and the leading shape of the result.

    Args:
        confidence: floats in [0, 1], [..., n].
        correct: bools, or numbers in [0, 1] (a shared tie, a soft label), [..., n]; leading axes broadcast.

    Raises:
        InputError: NaN, out of range, empty, mismatched lengths; integers or bools as confidence, which are
            what stands there when the two arguments are exchanged.
    """
    c, a, shape = as_rows(confidence, correct)
    check_range(as_array(confidence, "confidence"), "confidence", 0, 1, "a number in [0, 1]")
    if a.dtype.kind != "b":
        check_range(as_array(correct, "correct"), "correct", 0, 1, "a bool, or a number in [0, 1]")
    return c, a.astype(np.float64), shape


def _matrix(array: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    # Contiguous rows are summed in one order, alone or in a batch: equal bit for bit.
    return np.ascontiguousarray(np.broadcast_to(array, shape).reshape(-1, shape[-1]), dtype=dtype)
