"""Decoding of stored images."""

import io

import numpy as np
from PIL import Image

from runners.datasets._arrays import DatasetError

# What Pillow calls an image, and the form in which it is used.
FORMS = {"L": "L", "RGB": "RGB", "1": "L", "P": "RGB"}


def decode(data: bytes | None, where: str) -> np.ndarray:
    """An encoded image (JPEG, PNG, ...) as pixels: uint8 [1, H, W] if it is grey, [3, H, W] in colour.

    Args:
        data: the encoded bytes.
        where: what an error calls the place, such as a file and a row.

    Raises:
        DatasetError: no bytes, bytes that are no sound image, or a kind of pixel that would lose information.
    """
    if not data:
        raise DatasetError(f"{where} holds no image bytes; expected an encoded image such as JPEG or PNG")
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            if image.mode not in FORMS:
                raise DatasetError(f"{where} is an image of mode {image.mode}; expected 8-bit grey (L) or colour (RGB)")
            pixels = np.asarray(image.convert(FORMS[image.mode]))
    except DatasetError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DatasetError(
            f"{where} cannot be decoded ({error}); expected an encoded image such as JPEG or PNG"
        ) from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
