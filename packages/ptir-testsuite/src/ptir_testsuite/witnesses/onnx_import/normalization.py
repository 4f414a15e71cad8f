"""ONNX operators that normalize, and attention; where a functional of ours fits, it is used."""

from __future__ import annotations

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.tensor import full as scalar
from ptir.types import F32
from ptir_testsuite.witnesses.onnx_import.movement import window
from ptir_testsuite.witnesses.onnx_import.reductions import mean_of
from ptir_testsuite.witnesses.onnx_import.table import Node, Reason, onnx_op, product, refuse
from ptir_testsuite.witnesses.onnx_import.windows import channels_first, channels_last, channelwise


@onnx_op("BatchNormalization")
def batch_normalization(node: Node) -> Tensor:
    """With the given statistics."""
    if node.attr("training_mode", 0) or node.results > 1:
        raise refuse("BatchNormalization in training", Reason.TRAINING)
    x = node[0]
    if x.dtype == F32:
        vectors = [node[i] for i in range(1, 5)]
        last = F.batch_norm(channels_last(x), *vectors, epsilon=node.attr("epsilon", 1e-5))
        return channels_first(last)
    scale, bias, mean, variance = (channelwise(node[i], x.ndim) for i in range(1, 5))
    return (x - mean) / F.sqrt(variance + node.attr("epsilon", 1e-5)) * scale + bias


def standardized(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    """Less the mean, over the standard deviation."""
    centred = x - mean_of(x, axes)
    return centred / F.sqrt(mean_of(centred * centred, axes) + epsilon)


@onnx_op("InstanceNormalization")
def instance_normalization(node: Node) -> Tensor:
    """Each channel of each row by itself."""
    x = node[0]
    scale, bias = (channelwise(node[i], x.ndim) for i in (1, 2))
    normal = standardized(x, tuple(range(2, x.ndim)), node.attr("epsilon", 1e-5))
    return normal * scale + bias


@onnx_op("GroupNormalization")
def group_normalization(node: Node) -> Tensor:
    """Groups of channels; scale and bias per channel (before version 21 per group)."""
    x, groups = node[0], int(node.attr("num_groups"))
    grouped = x.reshape((x.shape[0], groups, product(x.shape[1:]) // groups))
    normal = standardized(grouped, (2,), node.attr("epsilon", 1e-5))
    scale, bias = node[1], node[2]
    if node.version < 21:
        normal = normal * channelwise(scale, 3) + channelwise(bias, 3)
        return normal.reshape(x.shape)
    return normal.reshape(x.shape) * channelwise(scale, x.ndim) + channelwise(bias, x.ndim)


@onnx_op("LayerNormalization")
def layer_normalization(node: Node) -> tuple[Tensor, ...]:
    """Over the last axes from ``axis`` on; also the mean and the inverse deviation."""
    x, weight, bias = node[0], node[1], node.optional(2)
    axis, epsilon = node.axis(-1, x.ndim), node.attr("epsilon", 1e-5)
    axes = tuple(range(axis, x.ndim))
    mean = mean_of(x, axes)
    centred = x - mean
    inverse = F.rsqrt(mean_of(centred * centred, axes) + epsilon)
    plain = axis == x.ndim - 1 and x.dtype == F32 and weight.shape == x.shape[-1:]
    if plain and bias is not None and bias.shape == weight.shape:
        return F.layer_norm(x, weight, bias, epsilon=epsilon), mean, inverse
    normal = centred * inverse * weight
    return normal if bias is None else normal + bias, mean, inverse


@onnx_op("RMSNormalization")
def rms_normalization(node: Node) -> Tensor:
    """Over the last axes from ``axis`` on, without a mean."""
    x, weight = node[0], node[1]
    axis, epsilon = node.axis(-1, x.ndim), node.attr("epsilon", 1e-5)
    if axis == x.ndim - 1 and x.dtype == F32 and weight.shape == x.shape[-1:]:
        return F.rms_norm(x, weight, epsilon=epsilon)
    return x * F.rsqrt(mean_of(x * x, tuple(range(axis, x.ndim))) + epsilon) * weight


@onnx_op("LRN")
def local_response(node: Node) -> Tensor:
    """Divided by a power of the squares of neighbouring channels."""
    x, size = node[0], int(node.attr("size"))
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    before = (size - 1) // 2
    none = (0,) * (x.ndim - 2)
    squares = call(
        "pad",
        x * x,
        scalar(0, x.dtype),
        low=(0, before, *none),
        high=(0, size - 1 - before, *none),
    )
    total = window(squares, 1, 0, x.shape[1])
    for offset in range(1, size):
        total = total + window(squares, 1, offset, offset + x.shape[1])
    base = total * (alpha / size) + bias
    return x / call("pow", base, scalar(beta, x.dtype, base.shape))


def plain_attention(node: Node) -> bool:
    """Whether F.attention says the same: f32 heads of one size, no mask, no past, one result."""
    q, k, v = node[0], node[1], node[2]
    known = node.attributes.keys() <= {"scale", "is_causal", "softcap"}
    alone = len(node.present) == 3 and node.results == 1 and known
    heads = all(x.ndim == 4 and x.dtype == F32 for x in (q, k, v))
    return alone and heads and k.shape == v.shape


@onnx_op("Attention", since=23)
def attention(node: Node) -> Tensor | None:
    """Our own attention where it says the same; else the body that ONNX defines."""
    if not plain_attention(node):
        return None
    cap = node.attr("softcap", 0.0)
    return F.attention(
        node[0],
        node[1],
        node[2],
        scale=node.attr("scale"),
        causal=bool(node.attr("is_causal", 0)),
        soft_cap=cap or None,
    )
