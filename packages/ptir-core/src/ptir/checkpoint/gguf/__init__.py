"""GGUF files: one checked header each, tensors as parameters, metadata as a configuration."""

from ptir.checkpoint.gguf.header import GgufFile, GgufTensor, begins_as_gguf
from ptir.checkpoint.gguf.metadata import Strings, Value
from ptir.checkpoint.gguf.tensor_types import READABLE, TYPES, GgufType

__all__ = [
    "READABLE",
    "TYPES",
    "GgufFile",
    "GgufTensor",
    "GgufType",
    "Strings",
    "Value",
    "begins_as_gguf",
]
