"""The layers that models share, each a few declared parameters and one functional."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.functional.linear import stored_alike
from ptir.nn.module import Module, note, param


class Linear(Module):
    """``x @ weight.T + bias`` with weight ``[outputs, inputs]``, as PyTorch stores it."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        self.outputs = outputs
        self.weight = param(outputs, inputs, inputs=1)
        self.bias = param(outputs) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to f32[...,size]."""
        return F.linear(x, self.weight, self.bias, layout="oi")


def fused_linear(x: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """What each of several linear layers makes of the same ``x``, computed as one product.

    The layers' weights are joined, which is done once when they are loaded, so that one pass over
    ``x`` serves all. Neighbours whose weights are stored in different formats are joined format by
    format, a product each. A layer without a bias beside some that have one adds zeros.
    """
    runs = stored_alike([layer.weight for layer in layers])
    return tuple(
        part for run in runs for part in _one_product(x, [layers[number] for number in run])
    )


def _one_product(x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
    weight = F.concat_weights([layer.weight for layer in layers], axis=0)
    biased = any(layer.bias is not None for layer in layers)
    biases = [
        F.full((layer.outputs,), 0.0) if layer.bias is None else layer.bias for layer in layers
    ]
    together = F.linear(x, weight, F.concat(biases) if biased else None, layout="oi")
    ends = list(accumulate(layer.outputs for layer in layers))
    found = [
        together[..., end - layer.outputs : end] for layer, end in zip(layers, ends, strict=True)
    ]
    for layer, result in zip(layers, found, strict=True):
        note(layer, result)
    return found


class Conv1D(Module):
    """``x @ weight + bias`` with weight ``[inputs, outputs]``, as GPT-2 checkpoints store it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = param(inputs, outputs, inputs=0)
        self.bias = param(outputs)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to f32[...,size]."""
        return F.linear(x, self.weight, self.bias, layout="io")


class Conv1d(Module):
    """Convolution over time with weight ``[outputs, inputs, taps]`` and ``[outputs]`` biases.

    As PyTorch stores them. ``padding`` zeros stand before the first step and behind the last.
    """

    def __init__(
        self, inputs: int, outputs: int, taps: int, *, stride: int = 1, padding: int = 0
    ) -> None:
        self.weight = param(outputs, inputs, taps)
        self.bias = param(outputs)
        self.stride, self.padding = stride, padding

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer: f32[N,T,inputs] to f32[N,OT,outputs]."""
        batch, length, inputs = x.shape
        found = F.conv2d(
            x.reshape(batch, length, 1, inputs),
            self.weight.reshape(*self.weight.shape, 1),
            self.bias,
            strides=(self.stride, 1),
            padding=(self.padding, 0),
            layout="oihw",
        )
        return found.reshape(batch, found.shape[1], found.shape[3])


class Embedding(Module):
    """Rows of ``weight`` ``[count, size]`` by index; ``is_head`` where rows are multiplied too."""

    def __init__(self, count: int, size: int, *, is_head: bool = False) -> None:
        self.weight = param(count, size, inputs=1, multiplied=is_head)

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows of the table: i32[...] to f32[...,size]."""
        return F.embedding(self.weight, ids)


class LayerNorm(Module):
    """Layer normalization over the last axis; without ``bias`` nothing is added."""

    def __init__(self, size: int, *, epsilon: float, bias: bool = True) -> None:
        self.weight = param(size)
        self.bias = param(size) if bias else None
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to f32[...,size]."""
        bias = F.full(self.weight.shape, 0.0) if self.bias is None else self.bias
        return F.layer_norm(x, self.weight, bias, epsilon=self.epsilon)


class RMSNorm(Module):
    """Root-mean-square normalization over the last axis; ``plus`` is added to the weight."""

    def __init__(self, size: int, *, epsilon: float, plus: float = 0.0) -> None:
        self.weight = param(size)
        self.epsilon, self.plus = epsilon, plus

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to f32[...,size]."""
        weight = self.weight + self.plus if self.plus else self.weight
        return F.rms_norm(x, weight, epsilon=self.epsilon)


class ExpertLinear(Module):
    """``Linear`` without bias of each of several experts, whose weights are one matrix.

    The weight is ``[experts * outputs, inputs]``, one expert's below the other's.
    """

    def __init__(self, inputs: int, outputs: int, experts: int) -> None:
        self.experts = experts
        self.weight = param(experts * outputs, inputs, inputs=1)

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """f32[N,I], or f32[N,K,I], and the experts i32[N,K] of each row to f32[N,K,outputs]."""
        return F.expert_linear(x, self.weight, chosen, experts=self.experts)


def last_rows(x: Tensor, count: Tensor) -> Tensor:
    """Row ``count[b] - 1`` of each batch row: f32[B,T,D] and i32[B] give f32[B,D]."""
    batch, length, size = x.shape
    index = F.arange(batch) * length + F.maximum(count - 1, 0)
    return F.embedding(x.reshape(batch * length, size), index)
