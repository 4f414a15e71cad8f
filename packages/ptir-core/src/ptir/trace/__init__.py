"""Sinks: listeners of ``ptir.events`` that write dumps, statistics, profiles and timelines."""

from ptir.trace.dump import DumpSink
from ptir.trace.dumped import Dumped, is_dump, read_dump
from ptir.trace.profile import ProfileSink
from ptir.trace.sink import Sink, listening_to
from ptir.trace.stats import StatsSink
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
