"""Layers: they declare typed parameters, own no arrays, and call functionals."""

from ptir.nn.layers import Conv1D, Embedding, LayerNorm, Linear, RMSNorm, last_rows
from ptir.nn.module import Module, param

__all__ = ["Conv1D", "Embedding", "LayerNorm", "Linear", "Module", "RMSNorm", "last_rows", "param"]
