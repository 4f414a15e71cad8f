"""GGUF files: one checked header each, tensors as parameters, metadata as a configuration."""

from ptir.checkpoint.gguf.architectures.table import LAYOUTS
from ptir.checkpoint.gguf.header import GgufFile, GgufTensor, begins_as_gguf
from ptir.checkpoint.gguf.metadata import Strings, Value
from ptir.checkpoint.gguf.opening import GgufVocabulary, Opened, open_gguf
from ptir.checkpoint.gguf.source import GgufSource
from ptir.checkpoint.gguf.splits import GgufModel
from ptir.checkpoint.gguf.tensor_types import READABLE, TYPES, GgufType
from ptir.checkpoint.gguf.write import Outgoing, write_gguf

__all__ = [
    "LAYOUTS",
    "READABLE",
    "TYPES",
    "GgufFile",
    "GgufModel",
    "GgufSource",
    "GgufTensor",
    "GgufType",
    "GgufVocabulary",
    "Opened",
    "Outgoing",
    "Strings",
    "Value",
    "begins_as_gguf",
    "open_gguf",
    "write_gguf",
]
