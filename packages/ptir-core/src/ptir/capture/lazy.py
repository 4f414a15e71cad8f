"""Lazy evaluation: recording ops on graph values and materializing what is asked for.

A flush computes the requested values and every live handle among their ancestors in one program,
so nothing is computed twice; computed nodes become sources and let go of their operands.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ptir.backend import registry
from ptir.backend.buffer import Buffer
from ptir.backend.contract import Backend, Target
from ptir.capture.bound import bound_plan
from ptir.capture.build import build, payload_of, pending_nodes, source_refs, target_of
from ptir.capture.plan import Parameter
from ptir.capture.trace import Symbol, tracing
from ptir.errors import CaptureError, UsageError
from ptir.ir.graph import SOURCE, Node, Ref
from ptir.ops.record import op
from ptir.switches import switched_on

_flush_lock = threading.RLock()


def eager() -> bool:
    """Whether ``PTIR_EAGER=1`` asks for every op to run at once."""
    return switched_on("PTIR_EAGER")


def apply(name: str, *operands: Ref, **attributes: Any) -> Ref:
    """Record the op called ``name`` on graph values; returns its only result.

    Raises ``TypeRuleError``.
    """
    return recorded(op(name).multi(*operands, **attributes))[0]


def recorded(refs: Sequence[Ref]) -> Sequence[Ref]:
    """The results of one node, once it is entered as a user of its operands.

    They are computed now if every op is to run at once. What depends on no tensor is left pending
    even then: where it runs is known when it meets one.
    """
    node = refs[0].node
    for operand in node.operands:
        if not operand.node.is_source:
            if operand.node.users is None:
                operand.node.users = weakref.WeakSet()
            operand.node.users.add(node)
    if not tracing() and eager() and source_refs(refs):
        materialize(refs)
    return refs


def default_target(backend: Any = None) -> Target:
    """The target called ``backend`` (``ref``, ``opencl:0``, a Target); None picks the best one."""
    if isinstance(backend, Target):
        return backend
    if isinstance(backend, Backend):
        return Target(backend, backend.devices()[0])
    if backend is not None and not isinstance(backend, str):
        kind = type(backend).__name__
        raise UsageError(f"backend is {kind}; give a name such as 'ref' or 'opencl:0', or a target")
    name = backend or os.environ.get("PTIR_BACKEND")
    return registry.get(name) if name else _best()


@functools.cache
def _best() -> Target:
    return registry.best().target


def buffer_of(ref: Ref) -> Buffer:
    """The buffer of a value, computed now if pending. Raises ``CaptureError`` in a capture."""
    if not ref.node.is_source:
        materialize([ref])
    payload = payload_of(ref)
    if isinstance(payload, Parameter):
        target = payload.store.target
        return Buffer(payload.store.handle(payload.name), ref.type, target, aliased=True)
    if isinstance(payload, Symbol):
        raise CaptureError(
            f"{payload.name}: {ref.type} has no value while a function is being captured;"
            " return it, or compute with ops instead of reading it"
        )
    assert isinstance(payload, Buffer)
    return payload


def fetch(ref: Ref) -> Callable[[], Any] | None:
    """Start the download of a value (``Backend.fetch``)."""
    buffer = buffer_of(ref)
    return buffer.target.backend.fetch(buffer.handle, buffer.target.device)


def readable(ref: Ref) -> bool:
    """Whether a value can be computed now: outside of captures and not depending on a symbol."""
    symbolic = any(isinstance(payload_of(found), Symbol) for found in source_refs([ref]))
    return not tracing() and not symbolic


def materialize(refs: Sequence[Ref]) -> None:
    """Compute ``refs`` and every live handle among their ancestors in one program."""
    with _flush_lock:
        pending = pending_nodes(refs)
        if not pending:
            return
        for ref in source_refs(refs):
            if isinstance(payload_of(ref), Symbol):
                buffer_of(ref)
        if tracing():
            raise CaptureError(
                "a tensor cannot be read while a function is being captured; read it outside"
            )
        kept = _kept(pending, {ref.node.serial for ref in refs})
        outputs = [Ref(node, index) for node in kept for index in range(len(node.types))]
        captured = build(outputs, (), ())
        target = target_of(captured, default_target)
        plan, parameters = bound_plan(captured.program, captured.parameters, target, name="tensors")
        inputs = [buffer.handle for buffer in captured.closed]
        handles = iter(plan.run(inputs, parameters))
        for node in kept:
            _settle(node, tuple(Buffer(next(handles), t, target) for t in node.types))


def _kept(pending: Sequence[Node], requested: set[int]) -> list[Node]:
    inside = {node.serial for node in pending}
    return [
        node
        for node in pending
        if node.serial in requested
        or node.payload
        or any(user.serial not in inside for user in node.users or ())
    ]


def _settle(node: Node, buffers: tuple[Buffer, ...]) -> None:
    node.payload = buffers
    node.op = SOURCE
    node.operands = ()
    node.regions = ()
    node.users = None
