"""How functionals are defined: a lowering written with tensors, kept in programs as a composite.

``@functional`` gives a name its portable lowering, ``@implementation`` adds another one, and
``composite`` records a call. To add a functional, write these and a function that checks its
operands; nothing else needs to know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, update_wrapper
from typing import Any, TypeVar

from ptir.capture import Tensor, lower
from ptir.capture.tensor import record
from ptir.errors import UnsupportedError
from ptir.ir.attributes import Attributes
from ptir.ir.location import UNKNOWN, located
from ptir.ir.program import Block
from ptir.ops.implementations import (
    INTERNAL_COMPOSITES,
    PORTABLE,
    Accuracy,
    Implementation,
    Lower,
    Preferred,
    Supports,
    always,
    define_functional,
    never,
    register,
)
from ptir.ops.implementations import functional as functional_named
from ptir.ops.record import op
from ptir.ops.signature import CallShapes, Measure
from ptir.types import TensorType

Lowering = TypeVar("Lowering", bound=Callable[..., Any])


def functional(
    name: str,
    doc: str,
    signature: str | Mapping[str, str] = "",
    **sizes: Measure,
) -> Callable[[Lowering], Lowering]:
    """Define the functional called ``name``; the decorated function is its portable lowering.

    The lowering takes the operands as tensors and the attributes as keywords. What overrides can
    ask about are the axes in ``signature`` (``x[M...,K] weight[K,N]``; one for each ``layout``
    where that is an attribute) and ``sizes`` besides, each a function of the operands' types and
    the attributes. Raises ``PluginError`` when the name is taken.
    """

    def decorate(function: Lowering) -> Lowering:
        define_functional(name, doc, CallShapes(signature, sizes))
        return implementation(name, PORTABLE, accuracy="exact")(function)

    return decorate


def implementation(
    functional: str,
    name: str,
    *,
    supports: Supports = always,
    accuracy: Accuracy = "reordered",
    preferred: Preferred = never,
) -> Callable[[Lowering], Lowering]:
    """Add the decorated lowering to a functional under ``name``; its docstring describes it.

    ``supports(operand types, attributes)`` says why a call cannot use it, or None; ``accuracy`` is
    one of ``ACCURACIES``; ``preferred(operand types, attributes)`` says why it is the default of a
    call, or None, and may do so where it is exact. Raises ``PluginError`` for a taken name and
    ``UsageError`` for an unknown functional.
    """

    def decorate(function: Lowering) -> Lowering:
        doc = (function.__doc__ or "").strip().partition("\n")[0]
        made = lowering(function, supports)
        register(Implementation(functional, name, made, doc, supports, accuracy, preferred))
        return function

    return decorate


def lowering(function: Callable[..., Any], supports: Supports = always) -> Lower:
    """``function`` over tensors as a memoised lowering: operand types and attributes to a block.

    Its ``__wrapped__`` is the function, whose parameters are the composite's operands and
    attributes. It raises ``UnsupportedError`` for calls that ``supports`` refuses, which the
    function never sees: a program from outside may claim to be lowered so.
    """

    @lru_cache(maxsize=512)
    def lowered(types: tuple[TensorType, ...], attributes: Attributes) -> Block:
        if reason := supports(types, attributes):
            raise UnsupportedError(f"{getattr(function, '__name__', function)}: {reason}")
        with located(UNKNOWN):  # all calls share the block; what it holds stands where they do
            return lower(function, types, attributes)

    def run(types: Sequence[TensorType], attributes: Attributes) -> Block:
        return lowered(tuple(types), attributes)

    return update_wrapper(run, function)


def composite(name: str, *operands: Tensor, **attributes: Any) -> Tensor:
    """Record a call of the functional ``name`` with its portable lowering; its only result."""
    return composite_multi(name, *operands, **attributes)[0]


def composite_multi(name: str, *operands: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
    """``composite`` where a functional gives several tensors: all its results."""
    portable = functional_named(name).implementations[PORTABLE]
    return called(name, portable.lower, operands, attributes)


def called(
    name: str, lower: Lower, operands: Sequence[Tensor], attributes: Mapping[str, Any]
) -> tuple[Tensor, ...]:
    """Record a composite of the functional ``name``, which is entered here, as ``lower`` says."""
    block = lower([operand.type for operand in operands], Attributes(attributes))
    refs = (operand.ref for operand in operands)
    results = op("composite").multi(*refs, regions=(block,), name=name, **attributes)
    node = results[0].node
    node.location = node.location.inside(name)
    return record(results)


def internal_composite(name: str, *operands: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
    """Record one of the composites that implementations are made of (``INTERNAL_COMPOSITES``)."""
    return called(name, INTERNAL_COMPOSITES[name], operands, attributes)
