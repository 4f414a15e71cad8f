"""Layers: they declare typed parameters, own no arrays, and call functionals."""

from ptir.nn.attention import cached_attention
from ptir.nn.images import AvgPool2d, BatchNorm2d, Conv2d, MaxPool2d
from ptir.nn.layers import Conv1D, Embedding, LayerNorm, Linear, RMSNorm, last_rows, side_by_side
from ptir.nn.module import Module, param

__all__ = [
    "AvgPool2d",
    "BatchNorm2d",
    "Conv1D",
    "Conv2d",
    "Embedding",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Module",
    "RMSNorm",
    "cached_attention",
    "last_rows",
    "param",
    "side_by_side",
]
