"""Convolutions and batch norms whose gradients are cheap to differentiate once more."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class TwiceDifferentiated(TorchFunctionMode):
    """Within this context a network's convolutions and batch norms in training mode come with their own backward.

    Outputs and gradients are torch's. What differs is the backward of the backward, which a penalty on input
    gradients needs: torch makes it of small steps over whole feature maps, which cost several times the pass itself,
    and more with channels last in memory.

    ::

        with TwiceDifferentiated() as pass_:
            logits = model(x)
        with pass_.inputs_only():
            (slope,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
        slope.square().sum().backward()

    Attributes:
        weights_wanted: False where gradients in weights are not computed; see `inputs_only`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights_wanted = True

    @contextmanager
    def inputs_only(self) -> Iterator[None]:
        """For backward passes to inputs: gradients in convolution weights are left out, not computed and dropped.

        Torch's own convolutions see for themselves what is asked for; a function written in Python cannot.
        """
        self.weights_wanted = False
        try:
            yield
        finally:
            self.weights_wanted = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.batch_norm:
            return _batch_norm(*args, **kwargs)
        if func is torch.conv2d:
            return _convolution(self, *args, **kwargs)
        return func(*args, **kwargs)


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training or weight is None:
        return functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    return _BatchNorm.apply(x, weight, bias, running_mean, running_var, momentum, eps)


def _convolution(
    mode: TwiceDifferentiated,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str) or x.ndim != 4:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    geometry = (_pair(stride), _pair(padding), _pair(dilation), False, [0, 0], groups)
    return _Convolution.apply(x, weight, bias, geometry, mode)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


class _BatchNorm(Function):
    """Batch norm in training mode, with mean and 1 / standard deviation over all axes but the channels'."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        out, mean, scale = torch.native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return *_BatchNormBackward.apply(slope, *ctx.saved_tensors, ctx.eps), None, None, None, None


def _normalised_backward(
    slope: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return aten.native_batch_norm_backward(slope, x, weight, None, None, mean, scale, True, eps, [True, True, True])


class _BatchNormBackward(Function):
    """The gradients of batch norm in x, weight and bias.

    With n values per channel, averages <.> over them, h = (x - mean) * scale and the incoming slope g:
    grad_x = weight * scale * (g - <g> - h <g h>), grad_weight = n <g h>, grad_bias = n <g>.
    """

    @staticmethod
    def forward(
        ctx: Any, slope: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients = _normalised_backward(slope, x, weight, mean, scale, eps)
        ctx.save_for_backward(slope, x, weight, mean, scale, *gradients[1:])
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return gradients

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, for_weight: Tensor | None, for_bias: Tensor | None) -> Any:
        slope, x, weight, mean, scale, slope_h, slope_sum = ctx.saved_tensors
        wanted = (u, for_weight, for_bias)
        if all(part is None for part in wanted):
            return (None,) * 6
        if u is None or for_weight is not None or for_bias is not None or torch.is_grad_enabled():
            return *_by_torch(slope, x, weight, mean, scale, ctx.eps, wanted), None, None, None
        # u weighs grad_x. In g the backward is linear, and its own transpose.
        to_slope, u_h, u_sum = _normalised_backward(u, x, weight, mean, scale, ctx.eps)
        # n <u g> in one pass: the gradient in the weight of a batch norm that does not change its input g.
        zero, one = torch.zeros_like(mean), torch.ones_like(mean)
        u_slope = _normalised_backward(u, slope, one, zero, one, 0.0)[1]
        n = x.numel() / x.shape[1]
        u_mean, slope_mean, u_h, slope_h = u_sum / n, slope_sum / n, u_h / n, slope_h / n
        covariance = u_slope / n - u_mean * slope_mean - u_h * slope_h
        # <u, grad_x> is n * weight * scale * covariance; x enters it through h, and through scale in front and in h.
        factor = weight * scale.square()
        in_h = factor * scale * (2 * u_h * slope_h - covariance)
        constant = factor * (u_mean * slope_h + slope_mean * u_h) - in_h * mean
        wide = (-1, *[1] * (x.ndim - 2))
        to_x = torch.addcmul(constant.view(wide), u, (-factor * slope_h).view(wide))
        to_x = to_x.addcmul_(slope, (-factor * u_h).view(wide)).addcmul_(x, in_h.view(wide))
        return to_slope, to_x, n * scale * covariance, None, None, None


def _by_torch(
    slope: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float, wanted: tuple[Tensor | None, ...]
) -> tuple[Tensor, ...]:
    """Torch's own, for whatever is not a plain second derivative; it refuses a third one."""
    with torch.enable_grad():
        slope, x, weight = (t if t.requires_grad else t.detach().requires_grad_() for t in (slope, x, weight))
        gradients = _normalised_backward(slope, x, weight, mean, scale, eps)
        pairs = [(gradient, u) for gradient, u in zip(gradients, wanted, strict=True) if u is not None]
        outputs, weights = zip(*pairs, strict=True)
        return torch.autograd.grad(
            outputs, (slope, x, weight), weights, create_graph=True, allow_unused=True, materialize_grads=True
        )


class _Convolution(Function):
    """A convolution of images."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Any, mode: TwiceDifferentiated
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.mode = geometry, mode
        return aten.convolution(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        wanted = ctx.mode.weights_wanted
        mask = (needs_x, needs_weight and wanted, needs_bias and wanted)
        return *_ConvolutionBackward.apply(slope, *ctx.saved_tensors, ctx.geometry, mask), None, None


def _convolved_backward(
    slope: Tensor, x: Tensor, weight: Tensor, geometry: Any, mask: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return aten.convolution_backward(slope, x, weight, [weight.shape[0]], *geometry, mask)


class _ConvolutionBackward(Function):
    """The gradients of a convolution in x, weight and bias, of which ``mask`` says which are computed."""

    @staticmethod
    def forward(
        ctx: Any, slope: Tensor, x: Tensor, weight: Tensor, geometry: Any, mask: tuple[bool, bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        ctx.save_for_backward(slope, x, weight)
        ctx.geometry = geometry
        ctx.set_materialize_grads(False)
        return _convolved_backward(slope, x, weight, geometry, mask)

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, for_weight: Tensor | None, for_bias: Tensor | None) -> Any:
        # Each gradient is linear in the slope, and in the other of weight and x.
        slope, x, weight = ctx.saved_tensors
        to_slope = []
        to_x = to_weight = None
        if u is not None:
            to_slope.append(aten.convolution(u, weight, None, *ctx.geometry))
            to_weight = _convolved_backward(slope, u, weight, ctx.geometry, (False, True, False))[1]
        if for_weight is not None:
            to_slope.append(aten.convolution(x, for_weight, None, *ctx.geometry))
            to_x = _convolved_backward(slope, x, for_weight, ctx.geometry, (True, False, False))[0]
        if for_bias is not None:
            to_slope.append(for_bias.view(-1, 1, 1).expand_as(slope))
        return sum(to_slope) if to_slope else None, to_x, to_weight, None, None
