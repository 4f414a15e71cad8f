"""A language model's step as it is captured, with what its parameters stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptir.capture.build import Captured
from ptir.capture.jit import record
from ptir.nn.state import by_layer, tensor_names
from ptir.types import spec

if TYPE_CHECKING:
    from ptir.runtime.handle import Model


def recorded_step(model: Model, batch: int, length: int, capacity: int) -> Captured:
    """The step of ``batch`` rows of ``length`` tokens on a state of ``capacity`` positions.

    Ports: ``tokens`` i32[B,T], ``start`` and ``count`` i32[B], the state's tensors by name, then
    parameters. Outputs: the last logits f32[B,V] and the next state.
    """
    states = model.states()
    carried = model.state_types(batch, capacity)

    def step(tokens: Any, start: Any, count: Any, *flat: Any) -> Any:
        return model.module(tokens, by_layer(states, flat), start, count)

    row = spec("i32", batch)
    types = (spec("i32", batch, length), row, row, *(t for types in carried for t in types))
    names = ["tokens", "start", "count", *tensor_names(states)]
    return record(step, types, names)[0]
