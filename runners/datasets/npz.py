"""Your own arrays, from one npz file."""

import zipfile
import zlib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from analysis.plugins import Positive, SettingError
from runners.datasets import Dataset, RawData
from runners.datasets._arrays import DatasetError, check_labels, count_classes, resolve

KEYS = ("x_train", "y_train", "x_test", "y_test")


class Npz(Dataset):
    """A file with arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``, as ``numpy.savez`` writes.

    Labels are integers [n] in 0..K-1. Inputs are real numbers: images [n, C, H, W], grey images [n, H, W], or
    feature vectors [n, features].

    Attributes:
        path: the file; ``~`` and ``$VARIABLE`` are expanded.
        layout: "NHWC" if the images' channels come last. Left out, images that look like that are refused.
        pixel_max: highest possible input, such as 255. Left out, it is 255 for bytes, and other inputs have
            no range (so that nothing clips an adversarial input).
        classes: number of classes K. Left out, it is one more than the largest label.
        label: what people call the dataset; the file's name without its suffix if left out.
    """

    path: str
    layout: Literal["NCHW", "NHWC"] | None = None
    pixel_max: Positive | None = None
    classes: Annotated[int, Field(ge=2)] | None = None
    label: str | None = None

    def read(self) -> RawData:
        path = resolve(self.path, "dataset.path")
        if not path.is_file():
            raise SettingError(f"dataset.path = {self.path!r}: there is no file {path.absolute()}")
        arrays = _arrays(path)
        train_from, test_from = f"{path} (x_train, y_train)", f"{path} (x_test, y_test)"
        check_labels(arrays["y_train"], train_from)
        check_labels(arrays["y_test"], test_from)
        x_train, x_test = (self._images(arrays[key], f"{path}: {key}") for key in ("x_train", "x_test"))
        pixel_max = 255.0 if self.pixel_max is None and x_train.dtype == np.uint8 else self.pixel_max
        return RawData(
            x_train=x_train,
            y_train=arrays["y_train"],
            x_test=x_test,
            y_test=arrays["y_test"],
            classes=count_classes(arrays["y_train"], arrays["y_test"], train_from, self.classes),
            pixel_max=pixel_max,
            label=path.stem if self.label is None else self.label,
            train_from=train_from,
            test_from=test_from,
        )

    def _images(self, x: np.ndarray, where: str) -> np.ndarray:
        if x.ndim == 3:
            return x[:, None]
        if x.ndim != 4:
            return x
        if self.layout == "NHWC":
            return x.transpose(0, 3, 1, 2)
        if self.layout is None and x.shape[3] <= 4 < x.shape[1]:
            raise DatasetError(
                f"{where} has shape {x.shape}, which looks as if channels came last; "
                'expected the setting layout = "NHWC" (or "NCHW" if they do not)'
            )
        return x


def _arrays(path: Path) -> dict[str, np.ndarray]:
    expected = f"expected an npz file with arrays {', '.join(KEYS)}"
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DatasetError(f"{path}: holds a single array; {expected}")
        with archive:
            missing = [key for key in KEYS if key not in archive]
            if missing:
                held = ", ".join(archive.files) or "nothing"
                raise DatasetError(f"{path}: has no {missing[0]} (it has {held}); {expected}")
            arrays = {key: archive[key] for key in KEYS}
    except DatasetError:
        raise
    except (EOFError, OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); {expected}") from error
    for key, array in arrays.items():
        if array.ndim == 0:
            raise DatasetError(f"{path}: {key} is a single number; {expected}")
    return arrays
