"""A small convolutional network without normalisation."""

from typing import ClassVar

from torch import nn

from analysis.plugins import Counts
from runners.models import Model
from runners.models._layers import ACTIVATIONS, Activation, image_shape, initialise_convolutions


class Cnn(Model):
    """Per stage a 3x3 convolution, an activation and 2x2 average pooling; then one linear layer.

    Average pooling keeps the network as smooth as its activation. Convolution weights start from
    N(0, 2 / fan_in) with zero biases (He et al. 2015), the linear layer as torch's ``nn.Linear`` does.

    Attributes:
        channels: channels of each stage; every stage halves the image (rounding down), so that images need
            sides of at least 2 ** len(channels).
        activation: the non-linearity after each convolution.
    """

    samples_per_pass: ClassVar[int] = 2_000

    channels: Counts = (16, 32)
    activation: Activation = "relu"

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
        stages = len(self.channels)
        colours, height, width = image_shape(input_shape, "cnn", least=2**stages)
        layers: list[nn.Module] = []
        fan_in = colours
        for fan_out in self.channels:
            layers += [
                nn.Conv2d(fan_in, fan_out, kernel_size=3, padding=1),
                ACTIVATIONS[self.activation](),
                nn.AvgPool2d(2),
            ]
            fan_in = fan_out
        features = fan_in * (height >> stages) * (width >> stages)
        network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, classes))
        initialise_convolutions(network)
        return network
