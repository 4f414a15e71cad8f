"""Lazy evaluation: recording ops on tensors and materializing what is asked for.

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
from ptir.capture.build import build, payload_of, pending_nodes, source_refs, target_of
from ptir.capture.host import host_array
from ptir.capture.plan import Parameter, plan_for
from ptir.capture.tensor import Tensor
from ptir.capture.trace import Symbol, tracing
from ptir.errors import CaptureError, UsageError
from ptir.ir.graph import SOURCE, Node, Ref, source
from ptir.ops.record import op
from ptir.params.store import ParamStore
from ptir.switches import switched_on
from ptir.types import DType, TensorType, dtype_of
from ptir.types import dtype as dtype_named

_flush_lock = threading.RLock()


def eager() -> bool:
    """Whether ``PTIR_EAGER=1`` asks for every op to run at once."""
    return switched_on("PTIR_EAGER")


def call_multi(name: str, *operands: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
    """Record the op called ``name`` on tensors; returns all results. Raises ``TypeRuleError``."""
    refs = op(name).multi(*(operand.ref for operand in operands), **attributes)
    return record(refs)


def call(name: str, *operands: Tensor, **attributes: Any) -> Tensor:
    """Record the op called ``name`` on tensors; returns its only result."""
    return call_multi(name, *operands, **attributes)[0]


def record(refs: Sequence[Ref]) -> tuple[Tensor, ...]:
    """Tensors for the results of one node, with the node entered as a user of its operands.

    What depends on no tensor is left pending even if every op runs at once: where it runs is known
    when it meets one.
    """
    node = refs[0].node
    for operand in node.operands:
        if not operand.node.is_source:
            if operand.node.users is None:
                operand.node.users = weakref.WeakSet()
            operand.node.users.add(node)
    tensors = tuple(Tensor(ref) for ref in refs)
    if not tracing() and eager() and source_refs(refs):
        materialize([tensor.ref for tensor in tensors])
    return tensors


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


def tensor(value: Any, dtype: str | DType | None = None, backend: Any = None) -> Tensor:
    """A tensor with the elements of ``value``: a NumPy array, nested lists, or a DLPack object.

    NumPy dtypes are kept; Python floats become f32, ints i32 (an error if they do not fit).
    ``dtype`` asks for another element type, under the rules of the op ``cast``. The elements are
    copied, on the device where they lie there. Raises ``TypeRuleError``.
    """
    if isinstance(value, Tensor):
        return value if dtype is None else value.astype(dtype)
    target = default_target(backend)
    foreign = adopted(value, target)
    if foreign is not None:
        handle = target.backend.copy(buffer_of(foreign.ref).handle, target.device)
        own = from_handle(handle, foreign.type, target)
        return own if dtype is None else own.astype(dtype)
    array = host_array(value, None if dtype is None else dtype_named(dtype))
    handle = target.backend.upload(array, target.device)
    return from_handle(handle, TensorType(dtype_of(array), tuple(array.shape)), target)


def adopted(value: Any, target: Target) -> Tensor | None:
    """A tensor over another library's memory, where that lies on the target's device."""
    found = target.backend.adopt(value, target.device) if hasattr(value, "__dlpack__") else None
    return None if found is None else from_handle(*found, target, aliased=True)


def from_handle(handle: Any, type: TensorType, target: Target, aliased: bool = False) -> Tensor:
    """A tensor that owns a device handle."""
    return Tensor(source(type, Buffer(handle, type, target, aliased)))


def parameter(store: ParamStore, name: str) -> Tensor:
    """A tensor for a stored parameter; nothing is read until a program needs it."""
    return Tensor(source(store.type(name), Parameter(store, name)))


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
        plan = plan_for(captured.program, target)
        inputs = [buffer.handle for buffer in captured.closed]
        handles = iter(plan.run(inputs, plan.bind(captured.parameters)))
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
