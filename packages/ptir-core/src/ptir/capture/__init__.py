"""Capture: lazy tensors, their flush into programs, and functions captured once and replayed."""

from ptir.capture.jit import Jitted, capture, jit
from ptir.capture.lazy import call, call_multi, parameter, tensor
from ptir.capture.plan import Plan, plan_for, run_program
from ptir.capture.tensor import Tensor
from ptir.capture.trace import lower

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
