"""The parquet dataset: decoding on demand, and what wrong files are told."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from analysis.plugins import SettingError
from runners.datasets import DatasetError
from runners.datasets import _images as images
from tests.runners.dataset_helpers import load, pixels


def encoded(seed: int, mode: str = "RGB", size: tuple[int, int] = (6, 5), form: str = "PNG") -> bytes:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    picture = Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))
    out = io.BytesIO()
    picture.convert(mode).save(out, form)
    return out.getvalue()


def write_parquet(
    path: Path,
    contents: list[bytes | None],
    labels: list[Any],
    image: str = "img",
    label: str = "label",
    kind: pa.DataType | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    column = pa.array(
        [{"bytes": content, "path": None} for content in contents],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({"id": pa.array(range(len(labels))), image: column, label: pa.array(labels, kind)})
    pq.write_table(table, path, row_group_size=4)


def parquet_folder(folder: Path, train: list[bytes | None] | None = None) -> Path:
    root = folder / "pictures"
    write_parquet(root / "train.parquet", train or [encoded(i) for i in range(12)], [i % 3 for i in range(12)])
    write_parquet(root / "test.parquet", [encoded(100 + i) for i in range(6)], [i % 3 for i in range(6)])
    return root


def test_parquet_decodes_the_chosen_images_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = parquet_folder(tmp_path)
    decoded = []
    original = images.decode
    monkeypatch.setattr(
        "runners.datasets.parquet.decode", lambda data, where: decoded.append(where) or original(data, where)
    )
    data = load("parquet", root=str(root), train_size=5, test_size=2)
    assert len(decoded) == 7
    rows = data.splits["train"].rows
    assert decoded[:5] == [f"{root}/train.parquet: row {row}" for row in rows]
    for x, row in zip(pixels(data, "train"), rows, strict=True):
        original_picture = np.asarray(Image.open(io.BytesIO(encoded(int(row))))).transpose(2, 0, 1)
        np.testing.assert_allclose(x, original_picture, atol=1e-4)
    assert data.splits["train"].y.tolist() == [row % 3 for row in rows]
    assert (data.label, data.input_shape, data.pixel_max) == ("pictures", (3, 5, 6), 255.0)


def test_parquet_in_several_files_and_other_columns_gives_the_same_data(tmp_path: Path) -> None:
    whole = load("parquet", root=str(parquet_folder(tmp_path)), train_size=8)
    shards = tmp_path / "shards"
    for shard in range(3):
        rows = range(4 * shard, 4 * shard + 4)
        write_parquet(
            shards / "data" / f"train-0000{shard}-of-00003.parquet",
            [encoded(i) for i in rows],
            [i % 3 for i in rows],
            image="image",
            label="fine_label",
        )
    write_parquet(
        shards / "held" / "out.parquet",
        [encoded(100 + i) for i in range(6)],
        [i % 3 for i in range(6)],
        image="image",
        label="fine_label",
    )
    split = load("parquet", root=str(shards), train_size=8, test_files="held/out.parquet", label="Pictures")
    assert split.fingerprint == whole.fingerprint
    assert split.label == "Pictures"


def test_parquet_reads_jpeg_grey_and_palette_images(tmp_path: Path) -> None:
    for mode, form, shape in (("RGB", "JPEG", (3, 5, 6)), ("L", "JPEG", (1, 5, 6)), ("P", "PNG", (3, 5, 6))):
        contents: list[bytes | None] = [encoded(i, mode, form=form) for i in range(6)]
        for split in ("train", "test"):
            write_parquet(tmp_path / mode / f"{split}.parquet", contents, [i % 2 for i in range(6)])
        assert load("parquet", root=str(tmp_path / mode)).input_shape == shape


JPEG = encoded(0, form="JPEG", size=(64, 64))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "row 5 holds no image bytes"),
        (b"", "row 5 holds no image bytes"),
        (b"not an image", "row 5 cannot be decoded"),
        (JPEG[: len(JPEG) // 2], "row 5 cannot be decoded (image file is truncated"),
        (encoded(0)[:40], "row 5 cannot be decoded"),
        (encoded(0, size=(7, 5)), "row 5 is an image of shape (3, 5, 7); expected (3, 5, 6)"),
        (encoded(0, mode="L"), "row 5 is an image of shape (1, 5, 6); expected (3, 5, 6)"),
        (encoded(0, mode="RGBA"), "row 5 is an image of mode RGBA"),
    ],
)
def test_a_wrong_image_is_named_with_its_row(tmp_path: Path, content: bytes | None, message: str) -> None:
    contents: list[bytes | None] = [encoded(i) for i in range(12)]
    contents[5] = content
    root = parquet_folder(tmp_path, contents)
    with pytest.raises(DatasetError) as failure:
        load("parquet", root=str(root))
    assert f"{root}/train.parquet: {message}" in str(failure.value)


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        ([0, 1, 2, -1] * 3, None, "row 3 has label -1; expected 0..K-1"),
        ([0.0, 1.0, 2.0] * 4, None, "column label has type double; expected integers"),
        (["a", "b", "c"] * 4, None, "column label has type string; expected integers"),
        ([0, 1, None, 2] * 3, None, "row 2 has no label"),
        ([1] * 12, None, "no training row has label 0"),
    ],
)
def test_wrong_parquet_labels(tmp_path: Path, labels: list[Any], kind: Any, message: str) -> None:
    root = parquet_folder(tmp_path)
    write_parquet(root / "train.parquet", [encoded(i) for i in range(12)], labels, kind=kind)
    with pytest.raises(DatasetError) as failure:
        load("parquet", root=str(root))
    assert message in str(failure.value)
    assert str(root / "train.parquet") in str(failure.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_column": "y"}, "dataset.label_column = 'y': "),
        ({"image_column": "picture"}, "dataset.image_column = 'picture': "),
        ({"image_column": "id"}, "column id has type int64; expected struct{bytes, path} or binary"),
        ({"train_files": "none-*.parquet"}, "dataset.train_files = 'none-*.parquet': no such file"),
        ({"test_files": ""}, "dataset.test_files = '': no such file"),
        ({"test_files": "/abs.parquet"}, "dataset.test_files = '/abs.parquet': no such file"),
        ({"classes": 2}, "row 2 has label 2; expected 0..1"),
        ({"classes": 1}, "dataset.classes = 1: "),
    ],
)
def test_wrong_parquet_settings(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as failure:
        load("parquet", root=str(parquet_folder(tmp_path)), **settings)
    assert message in str(failure.value)


def test_parquet_files_that_are_none(tmp_path: Path) -> None:
    root = parquet_folder(tmp_path)
    sound = (root / "train.parquet").read_bytes()
    damaged = bytearray(sound)
    damaged[20:200] = bytes(180)
    for content in (b"", b"hello", sound[: len(sound) // 2], bytes(damaged)):
        (root / "train.parquet").write_bytes(content)
        with pytest.raises(DatasetError, match=r"train\.parquet"):
            load("parquet", root=str(root))
    write_parquet(root / "train.parquet", [encoded(0)], [0], label="annotation")
    with pytest.raises(DatasetError, match="has the columns id, img, annotation; expected label or labels"):
        load("parquet", root=str(root))
    write_parquet(root / "train.parquet", [], [], kind=pa.int64())
    with pytest.raises(DatasetError, match="holds no rows"):
        load("parquet", root=str(root))
    (root / "train.parquet").unlink()
    with pytest.raises(SettingError, match=r"expected train\.parquet or train-\*\.parquet"):
        load("parquet", root=str(root))
    with pytest.raises(SettingError, match="there is no folder"):
        load("parquet", root=str(root / "test.parquet"))


@pytest.mark.skipif("MARGINTAIL_DATA" not in os.environ, reason="MARGINTAIL_DATA does not name the data folder")
def test_cifar10_as_jpeg() -> None:
    data = load("parquet", root="$MARGINTAIL_DATA/cifar10-jpeg", train_size=1000, test_size=500)
    assert (data.classes, data.input_shape) == (10, (3, 32, 32))
    assert np.bincount(data.splits["train"].y).tolist() == [100] * 10
    assert np.bincount(data.splits["test"].y).tolist() == [50] * 10
    # CIFAR-10 has channel means 125.3, 123.0, 113.9; those of a thousand images lie within a few of them.
    np.testing.assert_allclose(data.mean.flatten(), [125.3, 123.0, 113.9], atol=6)
