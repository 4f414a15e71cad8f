"""The backend contract: what a backend provides, at which level, and how one is found."""

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
