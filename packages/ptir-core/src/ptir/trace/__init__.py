"""Sinks: listeners of ``ptir.events`` that write dumps and add up statistics."""

from ptir.trace.dump import DumpSink
from ptir.trace.sink import Sink, listening_to
from ptir.trace.stats import StatsSink

__all__ = ["DumpSink", "Sink", "StatsSink", "listening_to"]
