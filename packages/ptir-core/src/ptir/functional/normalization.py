"""Normalization: layer norm and RMS norm over the last axis, batch norm by stored statistics."""

from __future__ import annotations

from typing import Final

from ptir.capture import Tensor
from ptir.functional import elementwise as each
from ptir.functional.check import Checked
from ptir.functional.define import composite, functional


def _mean(x: Tensor) -> Tensor:
    """The mean over the last axis, which stays with size 1."""
    return x.sum(axis=-1, keepdims=True) / float(x.shape[-1])


_LAYER: Final = "x[M...,D] weight[D] bias[D]"
_RMS: Final = "x[M...,D] weight[D]"


@functional("layer_norm", "(x - mean) / sqrt(variance + epsilon) * weight + bias", _LAYER)
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float) -> Tensor:
    centred = x - _mean(x)
    return centred * each.rsqrt(_mean(centred * centred) + epsilon) * weight + bias


@functional("rms_norm", "x / sqrt(mean(x * x) + epsilon) * weight", _RMS)
def _rms_norm(x: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
    return x * each.rsqrt(_mean(x * x) + epsilon) * weight


@functional("batch_norm", "(x - mean) / sqrt(variance + epsilon) * weight + bias by channel")
def _batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float
) -> Tensor:
    """One factor and one shift per channel, so that both are computed once from parameters."""
    factor = weight * each.rsqrt(variance + epsilon)
    return x * factor + (bias - mean * factor)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Layer normalization of x f32[..., D] over D, with weight and bias f32[D].

    The variance is the mean square of the centred values. Raises ``TypeRuleError``. Source: Ba,
    Kiros and Hinton, "Layer Normalization", 2016.
    """
    checked = Checked("layer_norm", _LAYER, x=x, weight=weight, bias=bias)
    return composite("layer_norm", x, weight, bias, epsilon=_epsilon(checked, epsilon))


def rms_norm(x: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
    """Root mean square normalization of x f32[..., D] over D, with weight f32[D].

    Raises ``TypeRuleError``. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization",
    2019.
    """
    checked = Checked("rms_norm", _RMS, x=x, weight=weight)
    return composite("rms_norm", x, weight, epsilon=_epsilon(checked, epsilon))


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
) -> Tensor:
    """Batch normalization of x f32[...,C] as at inference, with four vectors f32[C].

    It is emitted as ``x * factor + shift`` with two vectors that depend on parameters alone. Raises
    ``TypeRuleError``. Source: Ioffe and Szegedy, "Batch Normalization", 2015.
    """
    signature = "x[...,C] weight[C] bias[C] mean[C] variance[C]"
    operands = {"weight": weight, "bias": bias, "mean": mean, "variance": variance}
    checked = Checked("batch_norm", signature, x=x, **operands)
    epsilon = checked.number("epsilon", epsilon, least=0)
    return composite("batch_norm", x, *operands.values(), epsilon=epsilon)


def _epsilon(checked: Checked, epsilon: float) -> float:
    checked.require(checked["D"] > 0, "x", "the last axis of x is empty; it has no mean")
    return checked.number("epsilon", epsilon, least=0)
