"""Capture: lazy tensors, their flush into programs, and functions captured once and replayed."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ptir.capture.creation import parameter, tensor
from ptir.capture.jit import Jitted, capture, jit
from ptir.capture.lowering import lower
from ptir.capture.plan import Plan, plan_for
from ptir.capture.run import run_program
from ptir.capture.tensor import Tensor, call, call_multi
from ptir.ir.program import Program
from ptir.types import TensorType

__all__ = [
    "Jitted",
    "Plan",
    "Tensor",
    "call",
    "call_multi",
    "capture",
    "jit",
    "lower",
    "parameter",
    "plan_for",
    "run_program",
    "tensor",
]


class _Room(ModuleType):
    """Lets ``ptir.capture(fn, *specs)`` work although ``ptir.capture`` is also this package."""

    def __call__(self, function: Callable[..., Any], *specs: TensorType) -> Program:
        """The program of ``function`` on inputs of the given types."""
        return capture(function, *specs)


sys.modules[__name__].__class__ = _Room
