"""Fashion-MNIST: 60,000 + 10,000 pieces of clothing of 28x28 grey pixels in 10 classes (Xiao et al. 2017)."""

from pathlib import Path
from typing import Any, ClassVar

from torchvision.datasets import FashionMNIST

from runners.datasets._torchvision import IDX_FILES, TorchvisionDataset


class FashionMnist(TorchvisionDataset):
    """Fashion-MNIST, [n, 1, 28, 28] with pixels 0..255."""

    label: ClassVar[str] = "Fashion-MNIST"
    files: ClassVar[tuple[str, ...]] = tuple(f"FashionMNIST/raw/{name}" for name in IDX_FILES)

    def open(self, root: Path, train: bool, download: bool) -> tuple[Any, Any]:
        source = FashionMNIST(root, train, download=download)
        return source.data.unsqueeze(1), source.targets
