"""Quantized safetensors folders: which tensors make a weight, and the record that decodes it."""

from ptir.checkpoint.quantized.source import QuantizedFolder, quantized_source
from ptir.checkpoint.quantized.table import METHODS, Method

__all__ = ["METHODS", "Method", "QuantizedFolder", "quantized_source"]
