"""Sinks: listeners of ``ptir.events`` that write dumps, statistics, profiles and timelines."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ptir.trace.sink import Sink, listening_to
from ptir.trace.stats import StatsSink

if TYPE_CHECKING:
    from ptir.trace.dump import DumpSink
    from ptir.trace.dumped import Dumped, is_dump, read_dump
    from ptir.trace.profile import ProfileSink
    from ptir.trace.timeline import TimelineSink

__all__ = [
    "DumpSink",
    "Dumped",
    "ProfileSink",
    "Sink",
    "StatsSink",
    "TimelineSink",
    "is_dump",
    "listening_to",
    "read_dump",
]

_HOMES: Final = {
    "DumpSink": "ptir.trace.dump",
    **dict.fromkeys(("Dumped", "is_dump", "read_dump"), "ptir.trace.dumped"),
    "ProfileSink": "ptir.trace.profile",
    "TimelineSink": "ptir.trace.timeline",
}
"""Modules that are imported when they are named: every command has a session, few write a dump."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
