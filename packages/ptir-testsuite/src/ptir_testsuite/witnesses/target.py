"""Which backend a witness runs on: a name such as `ref` or `opencl:1`, or a target at hand."""

from __future__ import annotations

from ptir.backend import registry
from ptir.backend.contract import Target


def resolved(backend: str | Target) -> Target:
    """The target meant by a name; raises ``BackendUnavailable`` when there is none."""
    return backend if isinstance(backend, Target) else registry.get(backend)
