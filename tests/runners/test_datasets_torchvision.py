"""torchvision's layouts: tiny files with their checksums waived, and downloads that are not made."""

import pickle
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torchvision.datasets

from analysis.plugins import SettingError
from runners.datasets import DatasetError
from tests.runners.dataset_helpers import load, pixels


def write_cifar(root: Path, folder: str, names: list[str], key: str, n: int, classes: int) -> np.ndarray:
    (root / folder).mkdir(parents=True)
    every = []
    for number, name in enumerate(names):
        pixel_rows = np.random.default_rng(number).integers(0, 256, (n, 3072), dtype=np.uint8)
        entry = {"data": pixel_rows, key: [i % classes for i in range(n)]}
        (root / folder / name).write_bytes(pickle.dumps(entry))
        every.append(pixel_rows)
    return np.concatenate(every).reshape(-1, 3, 32, 32)


def waive_checksums(monkeypatch: pytest.MonkeyPatch, source: Any, root: Path) -> None:
    for field in ("train_list", "test_list"):
        monkeypatch.setattr(source, field, [[name, None] for name, _ in getattr(source, field)])
    monkeypatch.setattr(source, "meta", {**source.meta, "md5": None})
    meta = root / source.base_folder / source.meta["filename"]
    meta.write_bytes(pickle.dumps({source.meta["key"]: ["a"]}))


def no_downloads(*_: Any, **__: Any) -> None:
    raise AssertionError("a download was tried")


def test_cifar10_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"data_batch_{i}" for i in range(1, 6)]
    x = write_cifar(tmp_path, "cifar-10-batches-py", [*names, "test_batch"], "labels", 20, 10)
    waive_checksums(monkeypatch, torchvision.datasets.CIFAR10, tmp_path)
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "download", no_downloads)
    data = load("cifar10", root=str(tmp_path))
    np.testing.assert_allclose(pixels(data, "train"), x[:100], atol=1e-4)
    np.testing.assert_allclose(pixels(data, "test"), x[100:], atol=1e-4)
    assert data.splits["train"].y.tolist() == [i % 10 for i in range(100)]
    assert (data.label, data.classes, data.pixel_max) == ("CIFAR-10", 10, 255.0)
    assert load("cifar10", root=str(tmp_path), download=True).fingerprint == data.fingerprint
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"cifar-10-batches-py: not a sound copy of CIFAR-10"):
        load("cifar10", root=str(tmp_path))


def test_cifar_files_with_a_wrong_checksum_are_not_unpickled(tmp_path: Path) -> None:
    names = [f"data_batch_{i}" for i in range(1, 6)]
    write_cifar(tmp_path, "cifar-10-batches-py", [*names, "test_batch"], "labels", 20, 10)
    with pytest.raises(DatasetError, match=r"not a sound copy of CIFAR-10 .Dataset not found or corrupted"):
        load("cifar10", root=str(tmp_path))


def test_cifar100_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = write_cifar(tmp_path, "cifar-100-python", ["train", "test"], "fine_labels", 200, 100)
    waive_checksums(monkeypatch, torchvision.datasets.CIFAR100, tmp_path)
    data = load("cifar100", root=str(tmp_path), test_size=100)
    np.testing.assert_allclose(pixels(data, "train"), x[:200], atol=1e-4)
    assert (data.label, data.classes) == ("CIFAR-100", 100)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


@pytest.mark.parametrize(
    ("name", "folder", "label"),
    [("mnist", "MNIST", "MNIST"), ("fashion_mnist", "FashionMNIST", "Fashion-MNIST")],
)
def test_mnist_layouts(tmp_path: Path, name: str, folder: str, label: str) -> None:
    raw = tmp_path / folder / "raw"
    x = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    y = np.arange(40, dtype=np.uint8) % 10
    for split in ("train", "t10k"):
        write_idx(raw / f"{split}-images-idx3-ubyte", x)
        write_idx(raw / f"{split}-labels-idx1-ubyte", y)
    data = load(name, root=str(tmp_path), test_size=10)
    np.testing.assert_allclose(pixels(data, "train"), x[:, None], atol=1e-4)
    assert data.splits["train"].y.tolist() == y.tolist()
    assert (data.label, data.classes, data.input_shape) == (label, 10, (1, 28, 28))
    sound = (raw / "train-images-idx3-ubyte").read_bytes()
    for content in (b"", sound[:1000]):
        (raw / "train-images-idx3-ubyte").write_bytes(content)
        with pytest.raises(DatasetError, match=f"not a sound copy of {label}"):
            load(name, root=str(tmp_path))
    write_idx(raw / "train-images-idx3-ubyte", x[:39])
    with pytest.raises(DatasetError, match="39 inputs but 40 labels"):
        load(name, root=str(tmp_path))
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(SettingError, match=r"t10k-labels-idx1-ubyte is not there; .* download = true"):
        load(name, root=str(tmp_path))


def test_svhn_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
    y = np.arange(1, 21).reshape(-1, 1) % 10
    for name in ("train_32x32.mat", "test_32x32.mat"):
        scipy.io.savemat(tmp_path / name, {"X": x, "y": np.where(y == 0, 10, y)})
    waived = {key: [url, name, None] for key, (url, name, _) in torchvision.datasets.SVHN.split_list.items()}
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", waived)
    data = load("svhn", root=str(tmp_path))
    np.testing.assert_allclose(pixels(data, "train")[7], x[:, :, :, 7].transpose(2, 0, 1), atol=1e-4)
    assert data.splits["train"].y.tolist() == y.ravel().tolist()
    (tmp_path / "test_32x32.mat").write_bytes(b"")
    with pytest.raises(DatasetError, match="not a sound copy of SVHN"):
        load("svhn", root=str(tmp_path))


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion_mnist", "svhn"])
def test_missing_data_are_fetched_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    sources = ("CIFAR10", "MNIST", "SVHN")  # the others inherit their download
    for source in sources:
        monkeypatch.setattr(getattr(torchvision.datasets, source), "download", no_downloads)
    with pytest.raises(SettingError, match=r"dataset.root = .* is not there; .* download = true to fetch it"):
        load(name, root=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    for source in sources:
        monkeypatch.setattr(getattr(torchvision.datasets, source), "download", offline)
    with pytest.raises(SettingError, match=r"dataset.download = true: fetching .* failed: no route to host"):
        load(name, root=str(tmp_path / "none"), download=True)


def test_a_download_lands_in_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(source: Any) -> None:
        if not (Path(source.root) / "cifar-100-python").exists():
            write_cifar(Path(source.root), "cifar-100-python", ["train", "test"], "fine_labels", 200, 100)
            waive_checksums(monkeypatch, torchvision.datasets.CIFAR100, Path(source.root))

    monkeypatch.setattr(torchvision.datasets.CIFAR10, "download", fetch)
    assert load("cifar100", root=str(tmp_path / "new" / "folder"), download=True).classes == 100


def test_a_second_process_waits_for_the_download_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = []
    half_way = threading.Event()

    def fetch(source: Any) -> None:
        if (Path(source.root) / "MNIST").exists():
            return
        downloads.append(source)
        for split in ("train", "t10k"):
            raw = Path(source.root) / "MNIST" / "raw"
            write_idx(raw / f"{split}-labels-idx1-ubyte", np.arange(10, dtype=np.uint8))
            (raw / f"{split}-images-idx3-ubyte").write_bytes(b"")
        half_way.set()
        time.sleep(0.2)
        for split in ("train", "t10k"):
            write_idx(raw / f"{split}-images-idx3-ubyte", np.eye(10, 784, dtype=np.uint8).reshape(10, 28, 28))

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", fetch)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(load, "mnist", root=str(tmp_path), download=True)
        assert half_way.wait(10)
        second = load("mnist", root=str(tmp_path), download=True)
        assert first.result().fingerprint == second.fingerprint
    assert len(downloads) == 1
