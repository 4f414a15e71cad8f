"""Tracing: running a Python function on symbolic tensors and freezing what it recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ptir.errors import CaptureError
from ptir.ir.graph import Ref, freeze, source
from ptir.ir.program import Block
from ptir.types import TensorType


class Symbol:
    """The payload of a symbolic input: which trace it belongs to and what it is called."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Traces(threading.local):
    depth = 0


_traces = _Traces()


def tracing() -> bool:
    """Whether this thread is inside ``jit``, ``capture`` or a lowering."""
    return _traces.depth > 0


class Tracing:
    """``with Tracing():`` makes materializing an error until the block ends."""

    def __enter__(self) -> None:
        _traces.depth += 1

    def __exit__(self, *_: object) -> None:
        _traces.depth -= 1


def symbol(type: TensorType, name: str) -> Ref:
    """A symbolic input."""
    return source(type, Symbol(name))


def lower(
    function: Callable[..., Any], types: Sequence[TensorType], attributes: Mapping[str, Any]
) -> Block:
    """The closed block of ``function(*tensors, **attributes)``.

    Raises ``CaptureError`` when the function uses a tensor that is not an argument.
    """
    from ptir.capture.tensor import Tensor

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
