"""A timeline in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

The format: "Trace Event Format" (Google, 2016). Events are complete ones (``X``, with begin and
duration in microseconds), counters (``C``) and names of processes and threads (``M``).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ptir.errors import UsageError
from ptir.events import (
    CacheLookup,
    Event,
    KernelsBuilt,
    ParameterLoaded,
    PassRun,
    ProgramCompiled,
    ProgramRun,
)
from ptir.runtime.layers import LayerPart
from ptir.trace.profile import ProgramProfile
from ptir.trace.sink import Sink

HOST: Final = 1
DEVICE: Final = 2
PROCESSES: Final = {HOST: "host", DEVICE: "device"}
"""Rows of the timeline: what Python did by thread, and the parts of runs one after the other."""


class TimelineSink(Sink):
    """Collects what happens with its times, and writes ``path`` at the end.

    Parts of runs lie one behind the other from where their run began: what is left of it is the
    host's. Raises ``UsageError`` at once where the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._began = time.perf_counter()
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._threads: dict[int, str] = {}
        self._spans: dict[int, list[tuple[float, float]]] = {}
        """By thread, the begin and end of what is inside of nothing yet."""
        self._programs: dict[int, list[tuple[str, LayerPart]]] = {}
        self._runs: list[tuple[float, ProgramRun]] = []
        self._loaded = 0
        try:
            path.write_text("[]\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--profile-out {path}: {error.strerror}; choose another") from error

    def __call__(self, event: Event) -> None:
        """Take an event; what took time ends now."""
        now = time.perf_counter() - self._began
        said: dict[str, Any]
        with self._lock:
            match event:
                case PassRun():
                    said = {"rewrites": event.rewrites}
                    self._took(now, event.seconds, f"pass {event.name}", "pass", said)
                case ProgramCompiled():
                    name = event.plan.name if event.plan else event.captured.digest[:8]
                    said = {"instructions": len(event.optimized.main.instructions)}
                    self._took(now, event.seconds, f"compile {name}", "compile", said)
                case KernelsBuilt():
                    what = "restore kernels" if event.restored else "build kernels"
                    self._took(now, event.seconds, what, "kernels", {"key": event.key})
                case ParameterLoaded():
                    said = {"bytes": event.nbytes}
                    self._took(now, event.seconds, f"load {event.name}", "load", said)
                    self._loaded += event.nbytes
                    self._counter(now, "parameters", self._loaded)
                case CacheLookup() if not event.hit:
                    said = {"key": event.key, "reason": event.reason}
                    self._took(now, 0.0, f"miss: {event.cache}", "cache", said)
                case ProgramRun():
                    name = event.plan.name if event.plan else event.program.digest[:8]
                    self._took(now, event.seconds, f"run {name}", "run", {"run": event.run})
                    self._runs.append((now - event.seconds, event))
                case _:
                    pass

    def _took(self, end: float, seconds: float, name: str, kind: str, said: dict[str, Any]) -> None:
        thread = threading.get_ident()
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        number = [*self._threads].index(thread) + 1
        spans = self._spans.setdefault(thread, [])
        begin = max(0.0, end - seconds)
        # What happened inside ended before this did, and was heard as much too late as it took to
        # tell: spans of a thread must hold each other, so this one begins no later than those.
        while spans and spans[-1][1] > begin:
            begin = min(begin, spans.pop()[0])
        spans.append((begin, end))
        self._events.append(_complete(begin, end - begin, name, kind, HOST, number, said))

    def _counter(self, at: float, name: str, nbytes: int) -> None:
        self._events.append(
            {"name": name, "ph": "C", "ts": at * 1e6, "pid": HOST, "args": {"bytes": nbytes}}
        )

    def finish(self) -> None:
        """Write the file."""
        with self._lock:
            found = [*_names(self._threads), *self._events, *self._parts()]
        text = json.dumps({"traceEvents": found, "displayTimeUnit": "ns"})
        self.path.write_text(text + "\n", encoding="utf-8")

    def _parts(self) -> Iterator[dict[str, Any]]:
        for begin, run in self._runs:
            at = begin
            for (layer, part), seconds in zip(self._works(run), run.parts, strict=False):
                said = {
                    "layer": layer,
                    "computes": list(part.fused),
                    "parameters": list(part.parameters),
                    "bytes": part.moved.total,
                    "flops": part.flops,
                }
                yield _complete(at, seconds, part.name, part.kind, DEVICE, 1, said)
                at += seconds

    def _works(self, run: ProgramRun) -> list[tuple[str, LayerPart]]:
        """The parts of a program, looked at once."""
        if run.plan is None or not run.parts:
            return []
        key = id(run.plan.executable)
        if key not in self._programs:
            program = ProgramProfile(run.plan, run.plan.executable)
            program.take(run)
            self._programs[key] = program.works()
        return self._programs[key]


def _complete(
    begin: float, seconds: float, name: str, kind: str, pid: int, tid: int, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": begin * 1e6, "dur": seconds * 1e6}
    return {"name": name, "cat": kind, "ph": "X", **times, "pid": pid, "tid": tid, "args": args}


def _names(threads: dict[int, str]) -> Iterator[dict[str, Any]]:
    for pid, name in PROCESSES.items():
        yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
    named = {(HOST, n): name for n, name in enumerate(threads.values(), 1)} | {(DEVICE, 1): "parts"}
    for (pid, tid), name in named.items():
        said = {"name": name}
        yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": said}
