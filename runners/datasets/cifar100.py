"""CIFAR-100: 50,000 + 10,000 colour images of 32x32 pixels in 100 classes (Krizhevsky 2009)."""

from pathlib import Path
from typing import Any, ClassVar

from torchvision.datasets import CIFAR100

from runners.datasets._torchvision import TorchvisionDataset


class Cifar100(TorchvisionDataset):
    """CIFAR-100 with its 100 fine classes, [n, 3, 32, 32] with pixels 0..255."""

    label: ClassVar[str] = "CIFAR-100"
    classes: ClassVar[int] = 100
    files: ClassVar[tuple[str, ...]] = ("cifar-100-python/train", "cifar-100-python/test")

    def open(self, root: Path, train: bool, download: bool) -> tuple[Any, Any]:
        source = CIFAR100(root, train, download=download)
        return source.data.transpose(0, 3, 1, 2), source.targets
