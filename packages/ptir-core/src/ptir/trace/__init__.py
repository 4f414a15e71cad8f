"""Sinks: listeners of ``ptir.events`` that write dumps and add up statistics."""

from ptir.trace.dump import DumpSink
from ptir.trace.dumped import Dumped, is_dump, read_dump
from ptir.trace.sink import Sink, listening_to
from ptir.trace.stats import StatsSink

__all__ = ["DumpSink", "Dumped", "Sink", "StatsSink", "is_dump", "listening_to", "read_dump"]
