"""Tensors from what is none: arrays, lists, other libraries' memory, stored parameters."""

from __future__ import annotations

from typing import Any

from ptir.backend.contract import Target
from ptir.capture.host import host_array
from ptir.capture.lazy import buffer_of, default_target
from ptir.capture.plan import Parameter
from ptir.capture.tensor import Tensor, from_handle, from_host
from ptir.ir.graph import source
from ptir.params.store import ParamStore
from ptir.types import DType
from ptir.types import dtype as dtype_named


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
    return from_host(array, target)


def adopted(value: Any, target: Target) -> Tensor | None:
    """A tensor over another library's memory, where that lies on the target's device."""
    found = target.backend.adopt(value, target.device) if hasattr(value, "__dlpack__") else None
    return None if found is None else from_handle(*found, target, aliased=True)


def parameter(store: ParamStore, name: str) -> Tensor:
    """A tensor for a stored parameter; nothing is read until a program needs it."""
    return Tensor(source(store.type(name), Parameter(store, name)))
