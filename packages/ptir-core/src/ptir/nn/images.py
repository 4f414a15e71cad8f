"""The layers of image models, over [N,H,W,C]; parameters are stored as PyTorch stores them."""

from __future__ import annotations

from collections.abc import Callable

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.functional.window import Padding, Pair
from ptir.nn.module import Module, param


class Conv2d(Module):
    """Convolution with weight ``[outputs, inputs / groups, KH, KW]`` and ``[outputs]`` biases."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Pair,
        *,
        strides: Pair = 1,
        padding: Padding = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        shape = outputs, inputs // groups, height, width
        self.weight = param(*shape, filters=groups == 1)
        self.bias = param(outputs) if bias else None
        self.strides, self.padding, self.dilation = strides, padding, dilation
        self.groups = groups

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer: f32[N,H,W,inputs] to f32[N,OH,OW,outputs]."""
        return F.conv2d(
            x,
            self.weight,
            self.bias,
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            layout="oihw",
        )


class BatchNorm2d(Module):
    """Batch normalization by the running mean and variance of each channel."""

    def __init__(self, size: int, *, epsilon: float = 1e-5) -> None:
        self.weight = param(size)
        self.bias = param(size)
        self.running_mean = param(size)
        self.running_var = param(size)
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to f32[...,size]."""
        statistics = self.running_mean, self.running_var
        return F.batch_norm(x, self.weight, self.bias, *statistics, epsilon=self.epsilon)


class MaxPool2d(Module):
    """The greatest element of each window."""

    def __init__(
        self,
        window: Pair,
        *,
        strides: Pair | None = None,
        padding: Padding = 0,
        dilation: Pair = 1,
    ) -> None:
        self.window, self.strides = window, strides
        self.padding, self.dilation = padding, dilation

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer: f32[N,H,W,C] to f32[N,OH,OW,C]."""
        return F.max_pool2d(
            x,
            self.window,
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
        )


class AvgPool2d(Module):
    """The average of each window."""

    def __init__(
        self,
        window: Pair,
        *,
        strides: Pair | None = None,
        padding: Padding = 0,
        count_include_pad: bool = True,
    ) -> None:
        self.window, self.strides, self.padding = window, strides, padding
        self.count_include_pad = count_include_pad

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer: f32[N,H,W,C] to f32[N,OH,OW,C]."""
        return F.avg_pool2d(
            x,
            self.window,
            strides=self.strides,
            padding=self.padding,
            count_include_pad=self.count_include_pad,
        )


class Sequential(Module):
    """Layers one after the other, called by their numbers; functions between them have none."""

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        self.count = len(layers)
        for number, layer in enumerate(layers):
            setattr(self, str(number), layer)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply each layer to what the one before it gives."""
        for number in range(self.count):
            x = getattr(self, str(number))(x)
        return x


def relu(x: Tensor) -> Tensor:
    """What is below 0 becomes 0; f32[...] to f32[...]."""
    return F.maximum(x, 0.0)


def relu6(x: Tensor) -> Tensor:
    """The same, and what is above 6 becomes 6."""
    return F.minimum(relu(x), 6.0)


def global_average(x: Tensor) -> Tensor:
    """The mean of each channel over H and W: f32[N,H,W,C] to f32[N,C]."""
    return x.mean(axis=(1, 2))
