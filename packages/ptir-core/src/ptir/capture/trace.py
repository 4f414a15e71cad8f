"""Tracing: symbolic inputs, and the state in which a function runs on them."""

from __future__ import annotations

import threading

from ptir.ir.graph import Ref, source
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
