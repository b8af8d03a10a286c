"""Images in parquet files, in the column layout of the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from analysis.plugins import SettingError
from runners.datasets import Dataset, RawData
from runners.datasets._arrays import DatasetError, check_labels, count_classes, resolve
from runners.datasets._images import decode

LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class")
IMAGE_COLUMNS = ("img", "image")


class Parquet(Dataset):
    """A folder of parquet files: images in a column ``struct{bytes, path}`` or binary, and integer labels.

    Images are PNG, JPEG or anything else that Pillow reads, all of one size, grey [n, 1, H, W] or colour
    [n, 3, H, W], with pixels 0..255. Only the images of the chosen subsets are decoded.

    Attributes:
        root: the folder; ``~`` and ``$VARIABLE`` are expanded.
        train_files, test_files: a file or a pattern below ``root``, such as "plain_text/train-*.parquet".
            Left out: ``train.parquet`` or ``train-*.parquet`` in ``root`` or in its folder ``data``; likewise
            test.
        image_column: left out, ``img`` or ``image``.
        label_column: left out, the first of ``label``, ``labels``, ``fine_label``, ``target``, ``class``.
        classes: number of classes K. Left out, it is one more than the largest label.
        label: what people call the dataset; the folder's name if left out.
    """

    root: str
    train_files: str | None = None
    test_files: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    classes: Annotated[int, Field(ge=2)] | None = None
    label: str | None = None

    def read(self) -> RawData:
        root = resolve(self.root, "dataset.root")
        if not root.is_dir():
            raise SettingError(f"dataset.root = {self.root!r}: there is no folder {root.absolute()}")
        train = [self._table(path) for path in _find(root, "train", self.train_files)]
        test = [self._table(path) for path in _find(root, "test", self.test_files)]
        y_train, y_test = (np.concatenate([table.labels for table in tables]) for tables in (train, test))
        return RawData(
            x_train=Images(train),
            y_train=y_train,
            x_test=Images(test),
            y_test=y_test,
            classes=count_classes(y_train, y_test, _names(train), self.classes),
            pixel_max=255.0,
            label=root.resolve().name if self.label is None else self.label,
            train_from=_names(train),
            test_from=_names(test),
        )

    def _table(self, path: Path) -> "Table":
        try:
            file = pq.ParquetFile(path)
            schema = file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{path}: cannot be read ({error}); expected a parquet file") from error
        image = _column(path, schema, "image_column", self.image_column, IMAGE_COLUMNS)
        label = _column(path, schema, "label_column", self.label_column, LABEL_COLUMNS)
        return Table(path, file, image, label)


def _names(tables: list["Table"]) -> str:
    more = f" (and {len(tables) - 1} more)" if len(tables) > 1 else ""
    return f"{tables[0].path}{more}"


def _find(root: Path, split: str, pattern: str | None) -> list[Path]:
    patterns = (
        [pattern]
        if pattern is not None
        else [f"{folder}{name}" for folder in ("", "data/") for name in (f"{split}.parquet", f"{split}-*.parquet")]
    )
    for candidate in patterns:
        try:
            found = sorted(root.glob(candidate))
        except (NotImplementedError, ValueError):  # an absolute or an empty pattern
            break
        if found:
            return found
    raise SettingError(
        f"dataset.{split}_files = {pattern!r}: no such file in {root.absolute()}; expected "
        + ("a file or pattern below dataset.root" if pattern is not None else " or ".join(patterns))
    )


def _column(path: Path, schema: pa.Schema, setting: str, chosen: str | None, usual: tuple[str, ...]) -> str:
    columns = ", ".join(schema.names)
    if chosen is not None and chosen not in schema.names:
        raise SettingError(f"dataset.{setting} = {chosen!r}: {path} has the columns {columns}")
    name = chosen or next((name for name in usual if name in schema.names), None)
    if name is None:
        raise DatasetError(
            f"{path}: has the columns {columns}; expected {' or '.join(usual)}, or the setting {setting}"
        )
    kind = schema.field(name).type
    fits, expected = (
        (pa.types.is_integer(kind), "integers")
        if setting == "label_column"
        else (_is_image(kind), "struct{bytes, path} or binary")
    )
    if not fits:
        raise DatasetError(f"{path}: column {name} has type {kind}; expected {expected}")
    return name


def _is_image(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _is_image(kind.field("bytes").type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


class Table:
    """One parquet file: its labels at once, its images on demand."""

    def __init__(self, path: Path, file: pq.ParquetFile, image: str, label: str) -> None:
        self.path = path
        self.file = file
        self.image = image
        column = self._read(label)
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise DatasetError(f"{path}: row {row} has no {label}; expected an integer in every row")
        self.labels: np.ndarray = column.to_numpy()
        check_labels(self.labels, f"{path}: column {label}")

    def _read(self, column: str, group: int | None = None) -> pa.Array:
        try:
            table = (
                self.file.read(columns=[column]) if group is None else self.file.read_row_group(group, columns=[column])
            )
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{self.path}: column {column} cannot be read ({error})") from error
        return table.column(column).combine_chunks()

    def images(self, rows: np.ndarray) -> list[np.ndarray]:
        """The images of these rows, ascending, uint8 [C, H, W] each; one row group in memory at a time."""
        decoded = []
        first = 0
        for group in range(self.file.num_row_groups):
            last = first + self.file.metadata.row_group(group).num_rows
            inside = rows[(rows >= first) & (rows < last)]
            if len(inside):
                column = self._read(self.image, group)
                content = column.field("bytes") if pa.types.is_struct(column.type) else column
                for row, data in zip(inside, content.take(pa.array(inside - first)).to_pylist(), strict=True):
                    decoded.append(decode(data, f"{self.path}: row {row}"))
            first = last
        return decoded


class Images:
    """The images of several parquet files as one array, decoded as they are asked for."""

    def __init__(self, tables: list[Table]) -> None:
        self.tables = tables

    def __len__(self) -> int:
        return sum(len(table.labels) for table in self.tables)

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
        """Images uint8 [len(rows), C, H, W] of these rows, ascending.

        Raises:
            DatasetError: an image that cannot be decoded, or that differs in shape from the first.
        """
        decoded: list[np.ndarray] = []
        first = 0
        for table in self.tables:
            last = first + len(table.labels)
            inside = rows[(rows >= first) & (rows < last)] - first
            for row, image in zip(inside, table.images(inside), strict=True):
                if decoded and image.shape != decoded[0].shape:
                    raise DatasetError(
                        f"{table.path}: row {row} is an image of shape {image.shape}; expected "
                        f"{decoded[0].shape} as in the rows before"
                    )
                decoded.append(image)
            first = last
        return np.stack(decoded)
