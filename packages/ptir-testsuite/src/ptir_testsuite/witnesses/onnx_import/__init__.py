"""A thin importer of ONNX graphs: one table from operator names to builders, a family per file."""

from ptir_testsuite.witnesses.onnx_import import (
    contraction,
    control,
    elementwise,
    indexing,
    interpolation,
    movement,
    normalization,
    quantization,
    recurrent,
    reductions,
    resize,
    windows,
)
from ptir_testsuite.witnesses.onnx_import.scope import Scope, constant, to_array
from ptir_testsuite.witnesses.onnx_import.table import TABLE, Node, NotImported, Reason, onnx_op

FAMILIES = (
    contraction,
    control,
    elementwise,
    indexing,
    interpolation,
    movement,
    normalization,
    quantization,
    recurrent,
    reductions,
    resize,
    windows,
)

__all__ = [
    "FAMILIES",
    "TABLE",
    "Node",
    "NotImported",
    "Reason",
    "Scope",
    "constant",
    "onnx_op",
    "to_array",
]
