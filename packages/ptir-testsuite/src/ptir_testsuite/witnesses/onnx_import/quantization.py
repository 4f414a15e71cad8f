"""ONNX operators on quantized tensors: integers, a scale, a zero point, per axis or block."""

from __future__ import annotations

import numpy as np

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.tensor import full as scalar
from ptir.types import F32, I32, U8, DType
from ptir_testsuite.witnesses.onnx_import.contraction import centred
from ptir_testsuite.witnesses.onnx_import.elementwise import cast_to
from ptir_testsuite.witnesses.onnx_import.table import Node, element, onnx_op
from ptir_testsuite.witnesses.onnx_import.windows import convolved, window_of


def spread(scale: Tensor, shape: tuple[int, ...], axis: int, block: int) -> Tensor:
    """A scale or zero point for every element: one for all, per index of an axis, or per block."""
    if scale.size == 1 and scale.ndim < 2:
        return scale.reshape(()).broadcast_to(shape)
    if scale.ndim == 1:
        lined = scale.reshape(tuple(n if a == axis else 1 for a, n in enumerate(shape)))
        return lined.broadcast_to(shape)
    tall = scale.reshape((*scale.shape[: axis + 1], 1, *scale.shape[axis + 1 :]))
    split = (*scale.shape[: axis + 1], block, *scale.shape[axis + 1 :])
    blocks = tall.broadcast_to(split)
    merged = (*shape[:axis], scale.shape[axis] * block, *shape[axis + 1 :])
    return call("slice", blocks.reshape(merged), starts=(0,) * len(shape), limits=shape)


def quantized(x: Tensor, scale: Tensor, zero: Tensor | None, to: DType) -> Tensor:
    """round(x / scale) + zero in ``to``, halves to even, saturating."""
    ratio = x / scale
    if to.is_float:
        return cast_to(ratio if zero is None else ratio + zero.astype(ratio.dtype), to)
    whole = F.round(ratio).astype(F32).astype(I32)
    if zero is not None:
        whole = whole + zero.astype(I32)
    ends = np.iinfo(to.numpy)
    low, high = (scalar(int(n), I32, whole.shape) for n in (ends.min, ends.max))
    return call("clamp", low, whole, high).astype(to)


@onnx_op("QuantizeLinear")
def quantize_linear(node: Node) -> Tensor:
    """Per tensor, per axis, or per block of an axis."""
    x, scale, zero = node[0], node[1], node.optional(2)
    axis, block = node.axis(1, x.ndim), int(node.attr("block_size", 0))
    to = U8 if zero is None else zero.dtype
    if node.attr("output_dtype", 0):
        to = element(node.attr("output_dtype"))
    steps = spread(scale, x.shape, axis, block)
    zeros = None if zero is None else spread(zero, x.shape, axis, block)
    return quantized(x, steps.astype(x.dtype), zeros, to)


@onnx_op("DequantizeLinear")
def dequantize_linear(node: Node) -> Tensor:
    """(x - zero) * scale in the type of the scale."""
    x, scale, zero = node[0], node[1], node.optional(2)
    axis, block = node.axis(1, x.ndim), int(node.attr("block_size", 0))
    steps = spread(scale, x.shape, axis, block)
    wide = x.astype(F32 if x.dtype.is_float else I32)
    if zero is not None:
        wide = call("sub", wide, spread(zero, x.shape, axis, block).astype(wide.dtype))
    return wide.astype(steps.dtype) * steps


@onnx_op("QLinearMatMul")
def qlinear_matmul(node: Node) -> Tensor:
    """Products of centred integers in i32, rescaled once."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node[i] for i in range(8))
    product = centred(a, a_zero, -2) @ centred(b, b_zero, -1)
    return rescaled(product, a_scale, b_scale, y_scale, y_zero)


@onnx_op("QLinearConv")
def qlinear_conv(node: Node) -> Tensor:
    """The convolution of centred integers in i32, rescaled once."""
    x, w = centred(node[0], node[2], 0), centred(node[3], node[5], 0)
    window = window_of(node, x.shape[2:], w.shape[2:])
    result = convolved(x, w, window, node.attr("group", 1))
    bias = node.optional(8)
    if bias is not None:
        result = result + bias.reshape((bias.size, *[1] * (x.ndim - 2)))
    scale = node[4]
    if scale.size > 1:
        scale = scale.reshape((scale.size, *[1] * (x.ndim - 2)))
    return rescaled(result, node[1], scale, node[6], node[7])


def rescaled(x: Tensor, a: Tensor, b: Tensor, y: Tensor, zero: Tensor) -> Tensor:
    """i32 sums in units of a * b, quantized in units of y."""
    small, scale, unit = ((s.reshape(()) if s.size == 1 else s).astype(F32) for s in (a, b, y))
    return quantized(x.astype(F32) * (small * scale), unit, zero.reshape(()), zero.dtype)
