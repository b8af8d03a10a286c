"""Datasets that torchvision reads from a local folder."""

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from analysis.plugins import SettingError
from runners.datasets import Dataset, RawData
from runners.datasets._arrays import DatasetError, resolve

try:
    import fcntl
except ImportError:  # not a POSIX system: downloads are not guarded against one another there
    fcntl = None  # type: ignore[assignment]

IDX_FILES = tuple(
    f"{split}-{content}-ubyte" for split in ("train", "t10k") for content in ("images-idx3", "labels-idx1")
)
"""The four files of MNIST and of its successors."""


class TorchvisionDataset(Dataset):
    """A dataset in torchvision's layout.

    Attributes:
        root: the folder that torchvision calls root; ``~`` and ``$VARIABLE`` are expanded.
        download: fetch what is missing from the dataset's home. Nothing is fetched otherwise.
    """

    label: ClassVar[str]
    classes: ClassVar[int] = 10
    files: ClassVar[tuple[str, ...]]
    """What must be there below ``root``."""

    root: str = "data/torchvision"
    download: bool = False

    @abstractmethod
    def open(self, root: Path, train: bool, download: bool) -> tuple[Any, Any]:
        """Inputs uint8 [n, C, H, W] and labels [n] of one split, as torchvision reads them."""

    def read(self) -> RawData:
        root = resolve(self.root, "dataset.root")
        if self.download:
            self._fetch(root)
        for missing in self._missing(root):
            raise SettingError(
                f"dataset.root = {self.root!r}: {root.absolute() / missing} is not there; expected the "
                f"folder that holds {self.label} in torchvision's layout, or download = true to fetch it"
            )
        try:
            (x_train, y_train), (x_test, y_test) = (self.open(root, train, False) for train in (True, False))
        except Exception as error:  # whatever torchvision, pickle and scipy raise on files that are cut short
            raise DatasetError(
                f"{(root / self.files[0]).parent}: not a sound copy of {self.label} "
                f"({str(error) or type(error).__name__}); remove it and fetch it again"
            ) from error
        return RawData(
            x_train=np.asarray(x_train),
            y_train=np.asarray(y_train),
            x_test=np.asarray(x_test),
            y_test=np.asarray(y_test),
            classes=self.classes,
            pixel_max=255.0,
            label=self.label,
            train_from=f"{self.label} in {root} (training)",
            test_from=f"{self.label} in {root} (test)",
        )

    def _missing(self, root: Path) -> list[str]:
        return [file for file in self.files if not (root / file).is_file()]

    def _fetch(self, root: Path) -> None:
        lock = root / ".download.lock"
        if not self._missing(root) and not lock.exists():
            return
        try:
            root.mkdir(parents=True, exist_ok=True)
            with _alone(lock):
                if self._missing(root):
                    for train in (True, False):
                        self.open(root, train, True)
        except Exception as error:  # sockets, HTTP, archives: each raises its own
            raise SettingError(f"dataset.download = true: fetching {self.label} into {root} failed: {error}") from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock while downloading: the workers of a grid all start with the same missing files.

    The lock file stays: while it is there, another process may be half way through writing the others.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_RDONLY)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
