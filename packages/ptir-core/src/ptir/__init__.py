"""Portable tensor programs: write a model once, capture it, run it on any backend.

Names are loaded when first used, so importing ``ptir`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptir.backend.registry import get as backend
    from ptir.capture.creation import tensor
    from ptir.capture.jit import capture, jit
    from ptir.capture.run import run_program
    from ptir.capture.tensor import Tensor
    from ptir.errors import PtirError
    from ptir.ir import Program
    from ptir.ops.overriding import overrides
    from ptir.ops.reading import parse
    from ptir.runtime import Conversation, load_model
    from ptir.types import DType, TensorType, dtype, spec

_PUBLIC = {
    "Conversation": "ptir.runtime",
    "DType": "ptir.types",
    "Program": "ptir.ir",
    "PtirError": "ptir.errors",
    "Tensor": "ptir.capture",
    "TensorType": "ptir.types",
    "backend": "ptir.backend.registry:get",
    "capture": "ptir.capture:capture",
    "dtype": "ptir.types",
    "jit": "ptir.capture:jit",
    "load_model": "ptir.runtime",
    "overrides": "ptir.ops.overriding",
    "parse": "ptir.ops.reading",
    "run_program": "ptir.capture",
    "spec": "ptir.types",
    "tensor": "ptir.capture",
}

__all__ = [
    "Conversation",
    "DType",
    "Program",
    "PtirError",
    "Tensor",
    "TensorType",
    "backend",
    "capture",
    "dtype",
    "jit",
    "load_model",
    "overrides",
    "parse",
    "run_program",
    "spec",
    "tensor",
]


def __getattr__(name: str) -> Any:
    where = _PUBLIC.get(name)
    if where is None:
        from ptir.errors import unknown_name

        raise AttributeError(unknown_name("name of ptir", name, __all__))
    module, _, attribute = where.partition(":")
    value = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
