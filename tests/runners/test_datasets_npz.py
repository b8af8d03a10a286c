"""The npz dataset: one's own arrays, and what wrong ones are told."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis.plugins import SettingError
from runners.datasets import DatasetError
from tests.runners.dataset_helpers import load, pixels


def arrays(n: int = 12, shape: tuple[int, ...] = (3, 4, 5)) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "x_train": generator.integers(0, 256, (n, *shape), dtype=np.uint8),
        "y_train": np.arange(n) % 3,
        "x_test": generator.integers(0, 256, (6, *shape), dtype=np.uint8),
        "y_test": np.arange(6) % 3,
    }


def npz(folder: Path, **changed: Any) -> str:
    path = folder / "mine.npz"
    contents = {**arrays(), **changed}
    np.savez(path, **{key: value for key, value in contents.items() if value is not None})
    return str(path)


def test_npz_is_read_as_it_is(tmp_path: Path) -> None:
    data = load("npz", path=npz(tmp_path))
    x = arrays()["x_train"]
    np.testing.assert_allclose(pixels(data, "train"), x, atol=1e-4)
    np.testing.assert_allclose(data.mean.flatten(), x.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(data.std.flatten(), x.std(axis=(0, 2, 3)), rtol=1e-6)
    assert (data.classes, data.input_shape, data.pixel_max, data.label) == (3, (3, 4, 5), 255.0, "mine")
    assert data.splits["train"].y.tolist() == arrays()["y_train"].tolist()


def test_npz_takes_grey_images_feature_vectors_and_channels_last(tmp_path: Path) -> None:
    grey = {key: value[:, 0] if value.ndim == 4 else value for key, value in arrays().items()}
    assert load("npz", path=npz(tmp_path, **grey)).input_shape == (1, 4, 5)
    last = {
        key: np.ascontiguousarray(value.transpose(0, 2, 3, 1)) if value.ndim == 4 else value
        for key, value in arrays(shape=(3, 8, 5)).items()
    }
    path = npz(tmp_path, **last)
    np.testing.assert_allclose(
        pixels(load("npz", path=path, layout="NHWC"), "train"), arrays(shape=(3, 8, 5))["x_train"], atol=1e-4
    )
    with pytest.raises(DatasetError, match='layout = "NHWC"'):
        load("npz", path=path)
    features = np.random.default_rng(1).normal(size=(12, 7)) * 1e3
    features[:, 2] = 0.1
    data = load("npz", path=npz(tmp_path, x_train=features, x_test=features[:6]))
    assert data.input_shape == (7,)
    assert data.pixel_max is None
    np.testing.assert_allclose(data.std, [*features.std(axis=0)[:2], 1, *features.std(axis=0)[3:]], rtol=1e-6)
    assert torch.all(data.splits["train"].x[:, 2].abs() < 1e-6)
    assert torch.equal(data.pixel_std, data.std)
    assert torch.all(data.lowest == -torch.inf)
    assert torch.all(data.highest == torch.inf)


def test_the_fingerprint_is_that_of_contents(tmp_path: Path) -> None:
    def fingerprint(**changed: Any) -> str:
        return load("npz", path=npz(tmp_path, **changed), train_size=9, label=str(len(changed))).fingerprint

    first = fingerprint()
    assert first == fingerprint()
    pixel, label = arrays()["x_train"], arrays()["y_test"]
    pixel[load("npz", path=npz(tmp_path), train_size=9).splits["train"].rows[4], 1, 2, 3] ^= 1
    label[3] = 1
    assert len({first, fingerprint(x_train=pixel), fingerprint(y_test=label)}) == 3


def with_row(key: str, row: int, value: Any, dtype: type | None = None) -> dict[str, np.ndarray]:
    array = arrays()[key].astype(dtype) if dtype else arrays()[key]
    array[row] = value
    return {key: array}


WRONG_ARRAYS = [
    ({"y_train": None}, {}, "has no y_train (it has x_train, x_test, y_test)"),
    (with_row("y_train", 4, -1), {}, "(x_train, y_train): row 4 has label -1; expected 0..K-1"),
    ({"y_train": np.arange(12) % 3 + 1}, {}, "no training row has label 0"),
    (with_row("y_test", 2, 5), {}, "largest label is 5, but no training row has label 3"),
    ({"y_train": np.arange(12) % 3}, {"classes": 2}, "row 2 has label 2; expected 0..1"),
    ({"y_train": np.arange(12) % 3 + 0.5}, {}, "labels have dtype float64"),
    ({"y_train": np.eye(12, 3, dtype=int)}, {}, "labels have dtype int64 and shape (12, 3)"),
    ({"y_train": np.zeros(12, dtype=int), "y_test": np.zeros(6, dtype=int)}, {}, "every label is 0"),
    ({"y_train": np.arange(11) % 3}, {}, "12 inputs but 11 labels"),
    ({"y_test": np.arange(0), "x_test": arrays()["x_test"][:0]}, {}, "(x_test, y_test): holds no samples"),
    ({"y_train": np.arange(0), "x_train": arrays()["x_train"][:0]}, {}, "holds no rows"),
    (with_row("x_train", 7, np.nan, float), {}, "(x_train, y_train): row 7 has values from nan to nan"),
    (with_row("x_test", 3, np.inf, float), {}, "(x_test, y_test): row 3 has values from inf to inf"),
    (with_row("x_train", 7, 300, float), {"pixel_max": 255}, "row 7 has values from 300 to 300"),
    (with_row("x_train", 5, -1, float), {"pixel_max": 255}, "expected each to be a value in [0, 255]"),
    (with_row("x_train", 5, 1e200, float), {}, "too large to have a mean and a standard deviation"),
    (
        with_row("x_train", 0, 0, float) | with_row("x_test", 5, 1e200, float),
        {},
        "beyond float32 once standardised",
    ),
    ({"x_test": arrays(shape=(3, 4, 6))["x_test"]}, {}, "inputs have shape (3, 4, 6); expected (3, 4, 5)"),
    ({"x_train": np.zeros((12, 3), dtype=complex)}, {}, "inputs have dtype complex128"),
    ({"x_train": np.array([{}] * 12)}, {}, "cannot be read (Object arrays cannot be loaded"),
    ({"x_train": np.float64(3)}, {}, "x_train is a single number"),
    ({"x_train": np.arange(12.0)}, {}, "inputs have dtype float64 and shape (12,)"),
]


@pytest.mark.parametrize(("changed", "settings", "message"), WRONG_ARRAYS)
def test_wrong_arrays_are_named(
    tmp_path: Path, changed: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    path = npz(tmp_path, **changed)
    with pytest.raises(DatasetError) as failure:
        load("npz", path=path, **settings)
    assert message in str(failure.value)
    assert str(failure.value).startswith(path)


def test_a_declared_number_of_classes_may_leave_some_without_samples(tmp_path: Path) -> None:
    assert load("npz", path=npz(tmp_path), classes=7).classes == 7


def test_npz_files_that_are_none(tmp_path: Path) -> None:
    sound = Path(npz(tmp_path)).read_bytes()
    single = io.BytesIO()
    np.save(single, np.arange(3))
    for content in (b"", b"hello", sound[: len(sound) // 2], single.getvalue()):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(DatasetError, match=r"bad\.npz: .*expected an npz file with arrays x_train"):
            load("npz", path=str(tmp_path / "bad.npz"))
    flipped = bytearray(sound)
    flipped[sound.index(b"y_train") + 200] ^= 1  # past the headers, in the labels themselves
    (tmp_path / "bad.npz").write_bytes(flipped)
    with pytest.raises(DatasetError, match="cannot be read"):
        load("npz", path=str(tmp_path / "bad.npz"))
    with pytest.raises(SettingError, match="there is no file"):
        load("npz", path=str(tmp_path / "none.npz"))
    with pytest.raises(SettingError, match="there is no file"):
        load("npz", path=str(tmp_path))


def test_paths_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz(tmp_path)
    monkeypatch.setenv("SOMEWHERE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    prints = {
        load("npz", path=p).fingerprint
        for p in ("$SOMEWHERE/mine.npz", "${SOMEWHERE}/mine.npz", "~/mine.npz", "mine.npz")
    }
    assert len(prints) == 1
    monkeypatch.delenv("SOMEWHERE")
    with pytest.raises(SettingError, match="environment variable SOMEWHERE is not set"):
        load("npz", path="$SOMEWHERE/mine.npz")
    with pytest.raises(SettingError, match="expected a path"):
        load("npz", path="")
