"""Layers: they declare typed parameters, own no arrays, and call functionals."""

from ptir.nn.attention import cached_attention, shared_attention, slid
from ptir.nn.images import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    MaxPool2d,
    Sequential,
    global_average,
    relu,
    relu6,
)
from ptir.nn.layers import (
    Conv1D,
    Conv1d,
    Embedding,
    ExpertLinear,
    LayerNorm,
    Linear,
    RMSNorm,
    fused_linear,
    last_rows,
)
from ptir.nn.module import Module, param
from ptir.nn.recurrent import CausalConv1d, softplus

__all__ = [
    "AvgPool2d",
    "BatchNorm2d",
    "CausalConv1d",
    "Conv1D",
    "Conv1d",
    "Conv2d",
    "Embedding",
    "ExpertLinear",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Module",
    "RMSNorm",
    "Sequential",
    "cached_attention",
    "fused_linear",
    "global_average",
    "last_rows",
    "param",
    "relu",
    "relu6",
    "shared_attention",
    "slid",
    "softplus",
]
