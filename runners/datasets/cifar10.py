"""CIFAR-10: 50,000 + 10,000 colour images of 32x32 pixels in 10 classes (Krizhevsky 2009)."""

from pathlib import Path
from typing import Any, ClassVar

from torchvision.datasets import CIFAR10

from runners.datasets._torchvision import TorchvisionDataset


class Cifar10(TorchvisionDataset):
    """CIFAR-10, [n, 3, 32, 32] with pixels 0..255."""

    label: ClassVar[str] = "CIFAR-10"
    files: ClassVar[tuple[str, ...]] = tuple(
        f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    )

    def open(self, root: Path, train: bool, download: bool) -> tuple[Any, Any]:
        source = CIFAR10(root, train, download=download)
        return source.data.transpose(0, 3, 1, 2), source.targets
