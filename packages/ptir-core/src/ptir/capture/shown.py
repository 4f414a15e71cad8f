"""What is shown of a tensor: its type, where it is, and its values where they are few.

``print`` asks for values, so it computes them. ``repr`` and notebooks show what happens to be in
scope (debuggers and tracebacks do, too), so they run no program, read no parameter, and download
only what was computed already.
"""

from __future__ import annotations

from typing import Final

from ptir.backend.buffer import Buffer
from ptir.capture.build import payload_of
from ptir.capture.lazy import buffer_of, readable
from ptir.capture.plan import Parameter
from ptir.ir.graph import Ref
from ptir.notebook import Card
from ptir.units import size

MOST_DOWNLOADED: Final = 1 << 20
"""Bytes of a tensor that are downloaded to show some of its elements."""
PENDING: Final = "pending"
MANY: Final = f"more than {size(MOST_DOWNLOADED)}; index it, or read all with .numpy()"


def tensor_line(ref: Ref, *, compute: bool = False) -> str:
    """A tensor as text: ``Tensor(f32[2], [1. 2.])``, or why its values are not shown.

    With ``compute`` a value is computed, or read, if need be.
    """
    if compute and ref.type.nbytes <= MOST_DOWNLOADED and readable(ref):
        return f"Tensor({ref.type}, {_values(buffer_of(ref))})"
    state = _state(ref)
    if isinstance(state, Buffer):
        state = _values(state)
    elif compute and state:
        state = MANY
    return f"Tensor({ref.type}, {state})" if state else f"Tensor({ref.type})"


def tensor_card(ref: Ref) -> Card:
    """The type, the bytes, where it is, and the values that ``tensor_line`` shows."""
    state = _state(ref)
    facts = [("bytes", ref.type.nbytes)]
    if not isinstance(state, Buffer):
        note = f"{PENDING}; print it, or read it with .numpy()" if state == PENDING else state
        return Card(f"Tensor {ref.type}", facts, note=note)
    return Card(f"Tensor {ref.type}", [*facts, ("on", state.target)], text=_values(state))


def _state(ref: Ref) -> Buffer | str:
    """The buffer of a tensor whose values may be shown, else in words why they are not."""
    if not ref.node.is_source:
        return PENDING if readable(ref) else ""
    payload = payload_of(ref)
    if isinstance(payload, Parameter):
        return f"parameter {payload.name!r}"
    if not isinstance(payload, Buffer):
        return ""
    if payload.gone:
        return payload.gone
    return payload if ref.type.nbytes <= MOST_DOWNLOADED else MANY


def _values(buffer: Buffer) -> str:
    return str(buffer.download())
