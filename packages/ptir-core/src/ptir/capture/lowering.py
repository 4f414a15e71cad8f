"""Lowerings: a Python function on tensors as the closed block of what it records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ptir.capture.tensor import Tensor
from ptir.capture.trace import Tracing, symbol
from ptir.errors import CaptureError
from ptir.ir.graph import freeze
from ptir.ir.program import Block
from ptir.types import TensorType


def lower(
    function: Callable[..., Any], types: Sequence[TensorType], attributes: Mapping[str, Any]
) -> Block:
    """The closed block of ``function(*tensors, **attributes)``.

    Raises ``CaptureError`` when the function uses a tensor that is not an argument.
    """
    inputs = [symbol(type, f"operand {i}") for i, type in enumerate(types)]
    with Tracing():
        result = function(*(Tensor(ref) for ref in inputs), **attributes)
    outputs = result if isinstance(result, tuple) else (result,)
    for output in outputs:
        if not isinstance(output, Tensor):
            raise CaptureError(
                f"lowering {function.__name__} returned {type(output).__name__}, not a Tensor"
            )
    return freeze([output.ref for output in outputs], inputs)
