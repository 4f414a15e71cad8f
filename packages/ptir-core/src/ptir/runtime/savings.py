"""What makes a model need less memory: only what it, its formats and its backend have a use for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptir.errors import QuantizationError, UsageError
from ptir.params.source import ParamSource
from ptir.params.streaming import Savings
from ptir.runtime.held import held_parameters, types_taken
from ptir.types import BF16, DType

if TYPE_CHECKING:
    from ptir.runtime.handle import Model

SMALLEST = "int4"
"""The quantization of the fewest bits."""
TOKENS = 64
"""Positions of the states that are compared."""


def savings_of(model: Model, module: Any, source: ParamSource, quant: str | None) -> Savings:
    """What helps a loaded ``model``; ``module`` and ``source`` are what it was made of."""
    state = tuple(_of_state(model)) if "generate" in model.capabilities else ()
    smaller = quant != SMALLEST and _quantizes(module, source)
    return Savings(state, (f"--quant {SMALLEST}",) if smaller else ())


def _of_state(model: Model) -> Iterator[str]:
    yield "fewer tokens (-n)"
    held = _state_bytes(model, model.cache_dtype)
    if BF16.name in types_taken(model.target) and _state_bytes(model, BF16) < held:
        yield f"--cache-dtype {BF16.name}"
    if model.swa_full and _state_bytes(model, model.cache_dtype, swa_full=False) < held:
        yield "no --swa-full"


def _state_bytes(model: Model, dtype: DType, swa_full: bool | None = None) -> int:
    """Bytes of what the layers carry for a whole context."""
    states = model.states(swa_full=swa_full)
    capacity = max(TOKENS, model.context)
    return sum(type.nbytes for state in states for type in state.types(1, capacity, dtype))


def _quantizes(module: Any, source: ParamSource) -> bool:
    """Whether weights can be quantized while they are loaded: those in few bits already cannot."""
    if not module.weights():
        return False
    try:
        held_parameters(module, source, SMALLEST, "")
    except (QuantizationError, UsageError):
        return False
    return True
