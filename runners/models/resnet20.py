"""The 20-layer residual network for CIFAR of He et al. 2016, "Deep Residual Learning", section 4.2."""

import math
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from analysis.plugins import Count
from runners.models import Model
from runners.models._layers import GlobalAverage, image_shape, initialise_convolutions

Norm = Literal["batch", "group", "none"]

BLOCKS_PER_STAGE = 3
MOST_GROUPS = 8


class Resnet20(Model):
    """A convolution, three stages of three residual blocks, global average pooling, a linear layer.

    Stages have ``width``, 2 ``width`` and 4 ``width`` channels; the second and third halve the image.
    Shortcuts have no parameters (option A: every second pixel, and zeros for the new channels). With 16
    channels, batch norm and 10 classes it has 269,722 parameters. Convolutions (3x3) start from
    N(0, 2 / fan_in) (He et al. 2015), the linear layer as torch's ``nn.Linear`` does.

    With batch norm in training mode one sample's logits depend on the others in its batch, and per-sample
    Jacobians are not defined; in evaluation mode, or with another ``norm``, they are.

    Attributes:
        width: channels of the first stage.
        norm: after each convolution, "batch" norm (the paper's, and the default), or "group" norm with 8
            groups (fewer where 8 does not divide the channels), or "none". With "none" convolutions have
            biases, and the second one of each block starts at zero: the variance would double in each of the
            nine blocks otherwise (Zhang et al. 2019, "Fixup initialization").
    """

    samples_per_pass: ClassVar[int] = 500

    width: Count = 16
    norm: Norm = "batch"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
        colours, _, _ = image_shape(input_shape, "resnet20")
        layers: list[nn.Module] = [
            _convolution(colours, self.width, 1, self.norm),
            _normalisation(self.norm, self.width),
            nn.ReLU(),
        ]
        channels = self.width
        for stage in range(3):
            for block in range(BLOCKS_PER_STAGE):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Block(channels, channels * stride, stride, self.norm))
                channels *= stride
        network = nn.Sequential(*layers, GlobalAverage(), nn.Flatten(), nn.Linear(channels, classes))
        initialise_convolutions(network)
        if self.norm == "none":
            for module in network:
                if isinstance(module, Block):
                    nn.init.zeros_(module.second.weight)
        return network


class Block(nn.Module):
    """Two convolutions beside a shortcut: [n, C, H, W] -> [n, C', ceil(H/stride), ceil(W/stride)]."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = _convolution(channels_in, channels_out, stride, norm)
        self.first_norm = _normalisation(norm, channels_out)
        self.second = _convolution(channels_out, channels_out, 1, norm)
        self.second_norm = _normalisation(norm, channels_out)
        self.stride = stride
        self.new_channels = channels_out - channels_in

    def forward(self, x: Tensor) -> Tensor:
        residual = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        return F.relu(residual + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            # Every second pixel, as averages over one pixel each: the gradient of a slice has its channels first in
            # memory whatever the images have, which slows down all layers before it.
            x = F.avg_pool2d(x, 1, self.stride)
        if self.new_channels:
            # Half of the new channels in front, half behind: F.pad counts from the last axis back.
            front = self.new_channels // 2
            x = F.pad(x, (0, 0, 0, 0, front, self.new_channels - front))
        return x


def _convolution(channels_in: int, channels_out: int, stride: int, norm: Norm) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=norm == "none")


def _normalisation(norm: Norm, channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(MOST_GROUPS, channels), channels)
    return nn.Identity()
