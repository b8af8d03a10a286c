"""Networks, one file each; the folder is the list."""

from abc import abstractmethod
from typing import ClassVar

from torch import nn

from analysis.plugins import Plugin, Registry


class Model(Plugin):
    """Settings of a network.

    Attributes:
        samples_per_pass: samples per forward pass over a whole split, which bounds memory.
    """

    samples_per_pass: ClassVar[int] = 10_000

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """A freshly initialised network from inputs [n, *input_shape] to logits [n, classes].

        Initialisation draws from torch's global generator, which the caller seeds.
        """


MODELS: Registry[Model] = Registry("runners.models", Model)
