"""What every dataset does with paths and arrays: find, check, and standardise."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from analysis.plugins import SettingError

ROWS_AT_ONCE = 256
"""Rows that are turned into float64 at a time: they fit in cache, and memory does not double."""


class DatasetError(SettingError):
    """A file holds something else than was expected; the sentence names the file and, if it can, the row."""


def resolve(path: str, setting: str) -> Path:
    """The path with ``~`` and ``$VARIABLE`` expanded; a relative one counts from the current folder.

    Raises:
        SettingError: the path is empty or names an environment variable that is not set.
    """
    if not path:
        raise SettingError(f"{setting} = '': expected a path")
    for bare, braced in re.findall(r"\$(?:(\w+)|\{(\w+)\})", path):
        variable = bare or braced
        if not os.environ.get(variable):
            raise SettingError(f"{setting} = {path!r}: the environment variable {variable} is not set")
    return Path(os.path.expandvars(path)).expanduser()


def check_labels(labels: np.ndarray, where: str, classes: int | None = None) -> None:
    """Refuse anything but integers [n] in 0..classes-1.

    Args:
        labels: what was read.
        where: what an error calls the source, such as a file's path.
        classes: number of classes K, or None while it is not known.

    Raises:
        DatasetError: names the first wrong row.
    """
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DatasetError(
            f"{where}: labels have dtype {labels.dtype} and shape {labels.shape}; expected one integer per row"
        )
    wrong = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        last = "K-1" if classes is None else classes - 1
        raise DatasetError(f"{where}: row {row} has label {labels[row]}; expected 0..{last}")


def count_classes(y_train: np.ndarray, y_test: np.ndarray, where: str, declared: int | None) -> int:
    """The number of classes K: ``declared``, or one more than the largest label.

    Undeclared, every class must occur in the training labels: a gap more often means labels counted from
    1, or a wrong column, than a class without samples.

    Raises:
        DatasetError: no rows, or such a gap.
    """
    if declared is not None:
        return declared
    if len(y_train) == 0:
        raise DatasetError(f"{where}: holds no rows")
    largest = max(int(y_train.max()), int(y_test.max(initial=0)))
    present = np.unique(y_train)
    if len(present) <= largest:
        gaps = np.flatnonzero(present != np.arange(len(present)))
        missing = int(gaps[0]) if len(gaps) else len(present)
        raise DatasetError(
            f"{where}: the largest label is {largest}, but no training row has label {missing}; "
            "expected classes 0..K-1, each with a training row, or the setting classes = K"
        )
    return largest + 1


def check_inputs(x: np.ndarray, rows: np.ndarray, where: str, pixel_max: float | None) -> None:
    """Refuse anything but finite real numbers [n, C, H, W] or [n, features], in [0, pixel_max] if known.

    Args:
        x: the inputs that were read.
        rows: the row numbers they have in their file.
        where: what an error calls the source.
        pixel_max: highest value possible, None where there is no range.

    Raises:
        DatasetError: names the first wrong row.
    """
    if x.dtype.kind not in "uif" or x.ndim not in (2, 4) or 0 in x.shape[1:]:
        raise DatasetError(
            f"{where}: inputs have dtype {x.dtype} and shape {x.shape}; "
            "expected real numbers of shape [n, channels, height, width] or [n, features]"
        )
    for start, part in _parts(x):
        flat = part.reshape(len(part), -1)
        for wrong, expected in (
            (~np.isfinite(flat).all(axis=1), "a finite number"),
            (_outside(flat, pixel_max), f"a value in [0, {pixel_max:g}]" if pixel_max else ""),
        ):
            if wrong.any():
                first = int(np.argmax(wrong))
                low, high = flat[first].min(), flat[first].max()
                raise DatasetError(
                    f"{where}: row {rows[start + first]} has values from {low:g} to {high:g}; "
                    f"expected each to be {expected}"
                )


def _outside(flat: np.ndarray, pixel_max: float | None) -> np.ndarray:
    if pixel_max is None:
        return np.zeros(len(flat), dtype=bool)
    return (flat.min(axis=1) < 0) | (flat.max(axis=1) > pixel_max)


def _parts(x: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(x), ROWS_AT_ONCE):
        yield start, x[start : start + ROWS_AT_ONCE]


def channel_moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (ddof 0) per channel, float64, shaped to broadcast over ``x``.

    A channel (or feature) that is constant has standard deviation 1 here, so that it becomes 0 when
    standardised. Values too large to be squared give infinities.

    Args:
        x: [n, C, H, W] or [n, features]; axis 1 is the channel.

    Returns:
        mean and std, [C, 1, 1] or [features].
    """
    axes = (0, *range(2, x.ndim))
    count = x.size / x.shape[1]
    shape = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(sum(part.sum(axis=axes, dtype=np.float64) for _, part in _parts(x)) / count).reshape(shape)
        square = sum(np.square(part - mean).sum(axis=axes) for _, part in _parts(x)) / count
    constant = x.max(axis=axes) == x.min(axis=axes)
    std = np.where(constant, 1.0, np.sqrt(square)).reshape(shape)
    return mean[0], std[0]


def standardised(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """``(x - mean) / std``, computed in float64 and kept as float32; infinite where it is beyond float32."""
    out = np.empty(x.shape, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start, part in _parts(x):
            out[start : start + len(part)] = (part - mean) / std
    return out
