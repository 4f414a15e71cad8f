"""Functions on tensors. Composites stay visible in programs by name; the rest become ops.

The elementwise functions (``exp``, ``maximum``, ...) come from the op table; see ``elementwise``.
"""

from collections.abc import Callable

from ptir.capture import Tensor
from ptir.errors import unknown_name
from ptir.functional import (
    rounded,  # noqa: F401  fills the table of implementations
    rounded_convolution,  # noqa: F401  fills the table of implementations
    spellings,  # noqa: F401  fills the table of spellings
    winograd,  # noqa: F401  fills the table of implementations
)
from ptir.functional.activation import gelu, silu, swiglu
from ptir.functional.arrays import arange, concat, constant, full, stack, take
from ptir.functional.attention import attention, cache_update
from ptir.functional.control import cond, scan, while_loop
from ptir.functional.convolution import conv2d
from ptir.functional.define import composite, composite_multi, functional, implementation
from ptir.functional.elementwise import ELEMENTWISE, where
from ptir.functional.experts import expert_linear, quantized_expert_linear, router
from ptir.functional.greatest import top_k
from ptir.functional.indexing import gather, scatter, segment_reduce, take_along_axis
from ptir.functional.linear import concat_weights, embedding, linear
from ptir.functional.linear_attention import gated_linear_attention
from ptir.functional.normalization import batch_norm, layer_norm, rms_norm
from ptir.functional.pooling import avg_pool2d, max_pool2d
from ptir.functional.position import rope
from ptir.functional.quantized import affine_range, dequantize, quantize, quantized_linear
from ptir.functional.random import normal, uniform
from ptir.functional.recurrence import causal_conv1d, gated_delta_rule
from ptir.functional.sample import repetition_penalty, sample
from ptir.functional.softmax import softmax

__all__ = [
    "affine_range",
    "arange",
    "attention",
    "avg_pool2d",
    "batch_norm",
    "cache_update",
    "causal_conv1d",
    "composite",
    "composite_multi",
    "concat",
    "concat_weights",
    "cond",
    "constant",
    "conv2d",
    "dequantize",
    "embedding",
    "expert_linear",
    "full",
    "functional",
    "gated_delta_rule",
    "gated_linear_attention",
    "gather",
    "gelu",
    "implementation",
    "layer_norm",
    "linear",
    "max_pool2d",
    "normal",
    "quantize",
    "quantized_expert_linear",
    "quantized_linear",
    "repetition_penalty",
    "rms_norm",
    "rope",
    "router",
    "sample",
    "scan",
    "scatter",
    "segment_reduce",
    "silu",
    "softmax",
    "stack",
    "swiglu",
    "take",
    "take_along_axis",
    "top_k",
    "uniform",
    "where",
    "while_loop",
]


def __getattr__(name: str) -> Callable[..., Tensor]:
    if name not in ELEMENTWISE:
        raise AttributeError(unknown_name("functional", name, __dir__()))
    return ELEMENTWISE[name]


def __dir__() -> list[str]:
    return sorted([*__all__, *ELEMENTWISE])
