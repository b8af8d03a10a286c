"""Parts that several networks share."""

from typing import Literal

from torch import Tensor, nn

from analysis.plugins import SettingError

Activation = Literal["tanh", "relu", "gelu", "silu", "softplus", "sigmoid"]

ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
}


def image_shape(input_shape: tuple[int, ...], model: str, least: int = 1) -> tuple[int, int, int]:
    """``input_shape`` as (channels, height, width).

    Raises:
        SettingError: the inputs are no images, or images of fewer than ``least`` pixels a side.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise SettingError(
            f"model.name = {model!r}: it needs images of shape (channels, height, width) with "
            f"sides of at least {least}; the dataset's inputs have shape {input_shape}"
        )
    channels, height, width = input_shape
    return channels, height, width


def initialise_convolutions(network: nn.Module) -> None:
    """Draw convolution weights from N(0, 2 / fan_in) and zero their biases (He et al. 2015, eq. 10)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class GlobalAverage(nn.Module):
    """The mean of each channel over the image, [n, C, H, W] -> [n, C, 1, 1].

    As ``nn.AdaptiveAvgPool2d(1)``, but its gradient takes the order in memory of the layers before it.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.sum((2, 3), keepdim=True) / (x.shape[2] * x.shape[3])
