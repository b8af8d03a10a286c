"""SVHN: 73,257 + 26,032 house-number digits of 32x32 colour pixels (Netzer et al. 2011)."""

from pathlib import Path
from typing import Any, ClassVar

from torchvision.datasets import SVHN

from runners.datasets._torchvision import TorchvisionDataset


class Svhn(TorchvisionDataset):
    """Street View House Numbers, cropped: [n, 3, 32, 32] with pixels 0..255; the digit 0 is class 0."""

    label: ClassVar[str] = "SVHN"
    files: ClassVar[tuple[str, ...]] = ("train_32x32.mat", "test_32x32.mat")

    def open(self, root: Path, train: bool, download: bool) -> tuple[Any, Any]:
        source = SVHN(root, "train" if train else "test", download=download)
        return source.data, source.labels
