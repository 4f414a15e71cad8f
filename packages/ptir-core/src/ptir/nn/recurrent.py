"""What layers have whose state has one size however long the text: a causal convolution, steps."""

from __future__ import annotations

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.nn.module import Module, param
from ptir.nn.state import Carried


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, also where exp(x) is infinite."""
    return F.maximum(x, 0.0) + F.log1p(F.exp(-abs(x)))


class CausalConv1d(Module):
    """``functional.causal_conv1d`` with weight ``[size, 1, taps]``, as PyTorch stores it."""

    def __init__(self, size: int, taps: int, *, bias: bool) -> None:
        self.weight = param(size, 1, taps)
        self.bias = param(size) if bias else None

    @staticmethod
    def tail(size: int, taps: int) -> Carried:
        """What such a layer carries between steps."""
        return Carried("tail", (taps - 1, size))

    def __call__(self, x: Tensor, tail: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """f32[B,T,size], the tail and each row's ``count`` to f32[B,T,size] and the new tail."""
        size, _, taps = self.weight.shape
        return F.causal_conv1d(x, self.weight.reshape(size, taps), tail, count, self.bias)
