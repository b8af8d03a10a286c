"""Random crops and flips of training images; off unless a spec asks for them, as in the paper."""

from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, PrivateAttr, model_validator
from torch import Tensor

from analysis.plugins import Natural, SettingError
from runners.datasets import Data


class Augment(BaseModel):
    """Random crop and horizontal flip of each image of a batch (as for CIFAR in He et al. 2016, arXiv 1512.03385).

    Only the batches of training change: what is recorded is of the images as they are.

    Attributes:
        crop: an image is padded by so many black pixels on every side and cut back to its size at a random place; 0
            for no crop. Inputs without a pixel range are padded with their mean.
        flip: whether an image is mirrored, left to right, with probability 1/2.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    crop: Natural = 0
    flip: bool = False
    _black: Any = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _does_something(self) -> "Augment":
        if not (self.crop or self.flip):
            raise ValueError("neither crop nor flip is on; expected such as { crop = 4, flip = true }")
        return self

    def for_data(self, data: Data) -> "Augment":
        """The same augmentation, told what a black pixel is.

        Raises:
            SettingError: inputs that are no images, or a crop as large as they are.
        """
        if len(data.input_shape) != 3:
            raise SettingError(
                f"augment = {self.model_dump()}: {data.label} has inputs of shape {tuple(data.input_shape)}; "
                "expected images (C, H, W)"
            )
        if self.crop >= min(data.input_shape[1:]):
            raise SettingError(
                f"augment.crop = {self.crop}: expected less than the {min(data.input_shape[1:])} pixels of an image"
            )
        bound = self.model_copy()
        black = data.lowest
        bound._black = torch.where(black.isfinite(), black, torch.zeros_like(black))
        return bound

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Where to cut and whether to flip: int16 [3, n], rows 0 and 1 in 0..2 crop, row 2 in 0..1."""
        corner = torch.randint(2 * self.crop + 1, (2, n), generator=generator, dtype=torch.int16)
        mirrored = torch.randint(2, (1, n), generator=generator, dtype=torch.int16) * self.flip
        return torch.cat([corner, mirrored])

    def __call__(self, x: Tensor, drawn: Tensor) -> Tensor:
        """The images [n, C, H, W] cut and mirrored as ``drawn`` (see `draw`) on their device, in their memory format.

        All at once, without a loop over images and without waiting for the device.
        """
        n, channels, height, width = x.shape
        margin = self.crop
        padded = x.new_zeros(n, channels, height + 2 * margin, width + 2 * margin)
        if self._black is not None:
            padded += self._black.to(x)
        padded[:, :, margin : margin + height, margin : margin + width] = x
        top, left, mirrored = drawn.to(x.device).long().unsqueeze(-1)
        rows = top + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device).expand(n, -1)
        columns = left + torch.where(mirrored.bool(), columns.flip(1), columns)
        padded = padded.gather(2, rows[:, None, :, None].expand(n, channels, height, padded.shape[3]))
        cut = padded.gather(3, columns[:, None, None, :].expand(n, channels, height, width))
        layout = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
        return cut.contiguous(memory_format=layout)
