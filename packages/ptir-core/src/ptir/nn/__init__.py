"""Layers: they declare typed parameters, own no arrays, and call functionals."""

from ptir.nn.attention import cached_attention, shared_attention
from ptir.nn.images import AvgPool2d, BatchNorm2d, Conv2d, MaxPool2d
from ptir.nn.layers import (
    Conv1D,
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
    "Conv2d",
    "Embedding",
    "ExpertLinear",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Module",
    "RMSNorm",
    "cached_attention",
    "fused_linear",
    "last_rows",
    "param",
    "shared_attention",
    "softplus",
]
