"""What happens, as records: capture, passes, compilation and runs emit them, sinks listen.

``subscribe`` adds a listener and returns how to remove it; without listeners ``emit`` costs one
test. Sinks that write dumps and profiles live in ``ptir.trace``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptir.ir.program import Program
    from ptir.rewrite.firings import Firing


@dataclass(frozen=True)
class Event:
    """Base of every record."""


@dataclass(frozen=True)
class PassRun(Event):
    """One pass ran over a program; ``rewrites`` counts its rules, ``firings`` say where."""

    name: str
    seconds: float
    before: Program
    after: Program
    rewrites: dict[str, int] = field(default_factory=dict[str, int])
    firings: tuple[Firing, ...] = ()


@dataclass(frozen=True)
class ProgramCompiled(Event):
    """A captured program was optimized and compiled for a device."""

    captured: Program
    optimized: Program
    backend: str
    device: str
    seconds: float


@dataclass(frozen=True)
class KernelsBuilt(Event):
    """A source file of kernels was built, or restored from the cache on disk."""

    key: str
    device: str
    seconds: float
    restored: bool


@dataclass(frozen=True)
class ProgramRun(Event):
    """A compiled program was submitted to its device.

    ``parts`` are the seconds of its parts, each waited for, inside ``timing_parts``.
    """

    program: Program
    backend: str
    device: str
    seconds: float
    parts: tuple[float, ...] = ()


@dataclass(frozen=True)
class ImplementationChosen(Event):
    """The select pass settled which implementation a functional uses, and why."""

    functional: str
    implementation: str
    reason: str


@dataclass(frozen=True)
class ParameterLoaded(Event):
    """A stored parameter was read and uploaded."""

    name: str
    nbytes: int
    seconds: float


Listener = Callable[[Event], None]
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call ``listener`` with every event from now on; the result removes it again."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def listening() -> bool:
    """Whether anyone listens (to skip building an expensive event)."""
    return bool(_listeners)


_timing = 0


@contextmanager
def timing_parts() -> Iterator[None]:
    """Inside, while anyone listens, programs run part by part and ``ProgramRun`` says how long."""
    global _timing
    _timing += 1
    try:
        yield
    finally:
        _timing -= 1


def times_parts() -> bool:
    """Whether programs run part by part."""
    return _timing > 0


def emit(event: Event) -> None:
    """Hand ``event`` to every listener."""
    for listener in tuple(_listeners):
        listener(event)
