"""Labelled data to train and test on, one file each; the folder is the list."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from analysis.plugins import Count, Fraction, Natural, Plugin, Registry, SettingError
from runners.datasets._arrays import DatasetError, channel_moments, check_inputs, check_labels, standardised
from runners.datasets._subsets import redraw, stratified

__all__ = ["DATASETS", "Data", "Dataset", "DatasetError", "Inputs", "RawData", "Split"]

# One random stream for each choice, so that none of them moves another.
_TEST, _VALIDATION, _TRAIN, _NOISE = range(4)


class Inputs(Protocol):
    """Inputs of n samples, read by row numbers: a numpy array, or something that decodes on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
        """The inputs of these rows: [len(rows), C, H, W] or [len(rows), features]."""


@dataclass(frozen=True, eq=False)
class RawData:
    """A dataset as its files hold it, before subsets and standardisation.

    Attributes:
        x_train, x_test: real numbers [n, C, H, W] or [n, features], in pixel units.
        y_train, y_test: integer classes [n] in 0..classes-1.
        classes: number of classes K, at least 2.
        pixel_max: highest pixel value (255 for bytes), the lowest being 0. None where there is no range.
        label: what people call the dataset, shown beside every number measured on it.
        train_from, test_from: what an error calls the two sources, such as their files.
    """

    x_train: Inputs
    y_train: np.ndarray
    x_test: Inputs
    y_test: np.ndarray
    classes: int
    pixel_max: float | None
    label: str
    train_from: str = "the training data"
    test_from: str = "the test data"


@dataclass(frozen=True, eq=False)
class Split:
    """The samples of one split.

    Attributes:
        x: standardised inputs, float32 [n, C, H, W] or [n, features].
        y: classes, int64 [n]; on the training split with the label noise that was asked for.
        rows: row number of each sample in its source, int64 [n], ascending. Validation and training rows both
            count in the training source.
    """

    x: Tensor
    y: Tensor
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Data:
    """A dataset ready to train on.

    A standardised input is (pixel - mean) / std. The per-channel tensors have shape [C, 1, 1] for images and
    [features] for feature vectors, so that they broadcast over a batch.

    Attributes:
        splits: "train", "validation" (only if asked for) and "test".
        classes: number of classes K.
        input_shape: shape of one input, (C, H, W) or (features,).
        mean, std: per channel over the training subset, in pixel units, std with ddof 0 (1 if constant).
        pixel_max: highest pixel value, None where inputs have no range.
        label: what people call the dataset, with its label noise if there is any.
        fingerprint: SHA-256 (hex) over the chosen rows: numbers, inputs before standardisation, labels.
    """

    splits: Mapping[str, Split]
    classes: int
    input_shape: tuple[int, ...]
    mean: Tensor
    std: Tensor
    pixel_max: float | None
    label: str
    fingerprint: str

    @property
    def pixel_std(self) -> Tensor:
        """std as a fraction of the pixel range: a radius eps of pixels scaled to [0, 1], such as 8/255, is
        ``eps / pixel_std`` in standardised units. Where inputs have no range this is ``std`` itself.
        """
        return self.std if self.pixel_max is None else self.std / self.pixel_max

    @property
    def lowest(self) -> Tensor:
        """Standardised value of a pixel at 0, per channel; -inf where inputs have no range."""
        return torch.full_like(self.mean, -math.inf) if self.pixel_max is None else -self.mean / self.std

    @property
    def highest(self) -> Tensor:
        """Standardised value of a pixel at ``pixel_max``, per channel; inf where inputs have no range."""
        if self.pixel_max is None:
            return torch.full_like(self.mean, math.inf)
        return (self.pixel_max - self.mean) / self.std

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "Data":
        """The same data with its tensors on ``device`` and its real ones in ``dtype``."""
        return replace(
            self,
            splits={
                name: replace(split, x=split.x.to(device, dtype), y=split.y.to(device))
                for name, split in self.splits.items()
            },
            mean=self.mean.to(device, dtype),
            std=self.std.to(device, dtype),
        )

    def table(self) -> dict[str, Any]:
        """What a run's metadata says of its data, as plain JSON values."""
        return {
            "label": self.label,
            "classes": self.classes,
            "input_shape": list(self.input_shape),
            **{f"n_{name}": len(split.y) for name, split in self.splits.items()},
            "mean": self.mean.flatten().tolist(),
            "std": self.std.flatten().tolist(),
            "pixel_max": self.pixel_max,
            "fingerprint": self.fingerprint,
        }


class Dataset(Plugin):
    """Settings of a dataset: where it is, and which part of it is used.

    Subsets are drawn at random and stratified: each class gets its share of the whole, by largest remainder,
    so that sizes are met exactly (a size below the number of classes leaves some classes out). Inputs are
    standardised per channel by the mean and the standard deviation of the training subset; feature vectors
    per feature.

    Attributes:
        train_size: training samples; None takes all that validation leaves.
        test_size: test samples; None takes all.
        validation_size: samples held out of the training data, disjoint from the training subset; the same
            ones whatever ``train_size`` is.
        seed: of the choice of subsets and of label noise. The seed of a run is another, so that runs with
            different initial weights see the same data.
        label_noise: this fraction of the training subset, rounded to whole samples, has its label drawn anew,
            uniformly over all classes (some draws return the old label). Validation and test labels stay.
    """

    train_size: Count | None = None
    test_size: Count | None = None
    validation_size: Natural = 0
    seed: Natural = 0
    label_noise: Fraction = 0.0

    @abstractmethod
    def read(self) -> RawData:
        """What the files hold.

        Raises:
            SettingError: a path that leads nowhere.
            DatasetError: a file that holds something else than was expected.
        """

    def load(self) -> Data:
        """Read, check, choose subsets and standardise.

        Raises:
            SettingError: see ``read``; or a size larger than what there is.
        """
        raw = self.read()
        _check(raw)
        rows = self._choose(raw)
        x, y = {}, {}
        for name, chosen in rows.items():
            inputs, labels, where = (
                (raw.x_test, raw.y_test, raw.test_from)
                if name == "test"
                else (raw.x_train, raw.y_train, raw.train_from)
            )
            x[name], y[name] = inputs[chosen], labels[chosen].astype(np.int64)
            check_inputs(x[name], chosen, where, raw.pixel_max)
            if x[name].shape[1:] != x["train"].shape[1:]:
                raise DatasetError(
                    f"{where}: inputs have shape {x[name].shape[1:]}; "
                    f"expected {x['train'].shape[1:]}, as in {raw.train_from}"
                )
        label = raw.label
        if self.label_noise:
            y["train"] = redraw(y["train"], self.label_noise, raw.classes, (self.seed, _NOISE))
            label = f"{label}, label noise {self.label_noise:g}"
        mean, std = channel_moments(x["train"])
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise DatasetError(f"{raw.train_from}: values are too large to have a mean and a standard deviation")
        splits = {}
        for name in rows:
            scaled = standardised(x[name], mean, std)
            if not np.isfinite(scaled).all():
                where = raw.test_from if name == "test" else raw.train_from
                raise DatasetError(f"{where}: inputs are beyond float32 once standardised by the training subset")
            splits[name] = Split(torch.from_numpy(scaled), torch.from_numpy(y[name]), rows[name])
        return Data(
            splits=splits,
            classes=raw.classes,
            input_shape=x["train"].shape[1:],
            mean=torch.from_numpy(mean).float(),
            std=torch.from_numpy(std).float(),
            pixel_max=raw.pixel_max,
            label=label,
            fingerprint=_fingerprint(rows, x, y),
        )

    def _choose(self, raw: RawData) -> dict[str, np.ndarray]:
        available = len(raw.y_train)
        if self.validation_size >= available:
            raise SettingError(
                f"dataset.validation_size = {self.validation_size}: it is taken from {available} training "
                "samples and must leave some"
            )
        left = available - self.validation_size
        if self.train_size is not None and self.train_size > left:
            besides = f", {self.validation_size} of them for validation" if self.validation_size else ""
            raise SettingError(f"dataset.train_size = {self.train_size}: there are {available}{besides}")
        if self.test_size is not None and self.test_size > len(raw.y_test):
            raise SettingError(f"dataset.test_size = {self.test_size}: there are {len(raw.y_test)}")
        validation = stratified(raw.y_train, self.validation_size, (self.seed, _VALIDATION))
        pool = np.setdiff1d(np.arange(available), validation)
        train = pool[stratified(raw.y_train[pool], self.train_size or left, (self.seed, _TRAIN))]
        test = stratified(raw.y_test, self.test_size or len(raw.y_test), (self.seed, _TEST))
        return {"train": train, **({"validation": validation} if self.validation_size else {}), "test": test}


def _check(raw: RawData) -> None:
    for x, y, where in (
        (raw.x_train, raw.y_train, raw.train_from),
        (raw.x_test, raw.y_test, raw.test_from),
    ):
        check_labels(y, where, raw.classes)
        if len(x) != len(y):
            raise DatasetError(f"{where}: {len(x)} inputs but {len(y)} labels; expected one label per input")
        if len(y) == 0:
            raise DatasetError(f"{where}: holds no samples")
    if len(np.unique(raw.y_train)) < 2:
        raise DatasetError(
            f"{raw.train_from}: every label is {raw.y_train[0]}; expected samples of at least two classes"
        )


def _fingerprint(rows: Mapping[str, np.ndarray], x: Mapping[str, np.ndarray], y: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in rows:
        for array in (rows[name], x[name], y[name]):
            little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            digest.update(f"{name} {little_endian.dtype.str} {little_endian.shape};".encode())
            digest.update(little_endian.data)
    return digest.hexdigest()


DATASETS: Registry[Dataset] = Registry("runners.datasets", Dataset)
