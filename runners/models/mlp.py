"""Fully connected networks; as it stands the one of arXiv 2604.20614, section 3: 200-200, tanh."""

import itertools
import math
from typing import ClassVar

from torch import nn

from analysis.plugins import Counts
from runners.models import Model
from runners.models._layers import ACTIVATIONS, Activation


class Mlp(Model):
    """A multilayer perceptron: Flatten, then Linear and activation for each hidden layer, then Linear.

    It is a plain ``nn.Sequential`` of these, which lets fast curvature code recognise it. Weights and biases
    start as torch's ``nn.Linear`` does, uniform in +-1/sqrt(fan_in).

    Attributes:
        hidden: widths of the hidden layers; none makes multinomial logistic regression.
        activation: the non-linearity after each hidden layer.
        bias: whether the linear layers have biases.
    """

    # Activations are small beside the inputs, and curvature is fast on a split taken whole.
    samples_per_pass: ClassVar[int] = 100_000

    hidden: Counts = (200, 200)
    activation: Activation = "tanh"
    bias: bool = True

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
        widths = (math.prod(input_shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in itertools.pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out, bias=self.bias), ACTIVATIONS[self.activation]()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes, bias=self.bias))
