"""The backend contract: what a backend provides, at which level, and how one is found."""

import sys
from types import ModuleType
from typing import Any

from ptir.backend.buffer import Buffer
from ptir.backend.contract import (
    API_VERSION,
    Backend,
    Device,
    Executable,
    MemoryStats,
    OpQuery,
    Options,
    RunStats,
    Target,
)
from ptir.backend.interpreter import Interpreter

__all__ = [
    "API_VERSION",
    "Backend",
    "Buffer",
    "Device",
    "Executable",
    "Interpreter",
    "MemoryStats",
    "OpQuery",
    "Options",
    "RunStats",
    "Target",
]


class _Room(ModuleType):
    """Lets ``ptir.backend("ref")`` work although ``ptir.backend`` is also this package."""

    def __call__(self, name: Any = None) -> Target:
        """The target called ``name`` (``ref``, ``opencl:0``); None picks the best working one."""
        from ptir.backend import registry

        return registry.get(name) if name else registry.best().target


sys.modules[__name__].__class__ = _Room
