"""MNIST: 60,000 + 10,000 handwritten digits of 28x28 grey pixels (LeCun et al. 1998)."""

from pathlib import Path
from typing import Any, ClassVar

from torchvision.datasets import MNIST

from runners.datasets._torchvision import IDX_FILES, TorchvisionDataset


class Mnist(TorchvisionDataset):
    """MNIST, [n, 1, 28, 28] with pixels 0..255."""

    label: ClassVar[str] = "MNIST"
    files: ClassVar[tuple[str, ...]] = tuple(f"MNIST/raw/{name}" for name in IDX_FILES)

    def open(self, root: Path, train: bool, download: bool) -> tuple[Any, Any]:
        source = MNIST(root, train, download=download)
        return source.data.unsqueeze(1), source.targets
