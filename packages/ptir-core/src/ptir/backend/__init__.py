"""The backend contract: what a backend provides, at which level, and how one is found.

Names are loaded when first used: listing what is installed needs none of them.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {"Buffer": "buffer", "Interpreter": "interpreter"}


class _Room(ModuleType):
    """Lets ``ptir.backend("ref")`` work although ``ptir.backend`` is also this package."""

    def __call__(self, name: Any = None) -> "Target":
        """The target called ``name`` (``ref``, ``opencl:0``); None picks the best working one."""
        from ptir.backend import registry

        return registry.get(name) if name else registry.best().target

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'contract')}")
        value = getattr(home, name)
        setattr(self, name, value)
        return value


sys.modules[__name__].__class__ = _Room
