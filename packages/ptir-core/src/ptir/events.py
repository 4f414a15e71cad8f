"""What happens, as records: capture, passes, compilation and runs emit them, sinks listen.

``subscribe`` adds a listener and returns how to remove it; without listeners ``emit`` costs one
test. Sinks that write dumps and profiles live in ``ptir.trace``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ptir.backend.contract import Derivation, Executable, Options, Target
    from ptir.ir.program import Program
    from ptir.ops.policies import Overrides
    from ptir.params.rows import Rows
    from ptir.rewrite.firings import Firing


class CompiledPlan(Protocol):
    """What sinks read of a plan; ``ptir.capture.plan.Plan`` is one."""

    @property
    def name(self) -> str:
        """What the program is called: the jitted function's name."""
        ...

    @property
    def captured(self) -> Program:
        """The program as it was captured: portable, its parameters as they are stored."""
        ...

    @property
    def optimized(self) -> Program:
        """The program behind the passes."""
        ...

    @property
    def executable(self) -> Executable:
        """What was compiled of it."""
        ...

    @property
    def target(self) -> Target:
        """Where it runs."""
        ...

    @property
    def derived(self) -> Mapping[str, Derivation]:
        """How its parameters are computed that are not stored, by name."""
        ...

    @property
    def donated(self) -> frozenset[int]:
        """Inputs that a run consumes."""
        ...

    @property
    def options(self) -> Options:
        """How it was compiled."""
        ...

    @property
    def rows(self) -> Mapping[str, Rows]:
        """Parameters that are rows of others."""
        ...


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
class ProgramCompiling(Event):
    """A captured program is about to be optimized and compiled.

    What passes and kernels the same thread tells of until ``ProgramCompiled`` are its own.
    """

    captured: Program
    name: str
    backend: str
    device: str
    overrides: Overrides = ()


@dataclass(frozen=True)
class ProgramCompiled(Event):
    """A captured program was optimized and compiled for a device."""

    captured: Program
    optimized: Program
    backend: str
    device: str
    seconds: float
    plan: CompiledPlan | None = None
    overrides: Overrides = ()


@dataclass(frozen=True)
class KernelsWritten(Event):
    """A straight-line program came down to kernels in one source file.

    ``launches`` are those of a run in order: the kernel's name, nothing for a copy, its workgroups
    and the threads of each.
    """

    program: Program
    language: str
    source: str
    launches: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class KernelsBuilt(Event):
    """A source file of kernels was built, or restored from the cache on disk."""

    key: str
    device: str
    seconds: float
    restored: bool


@dataclass(frozen=True)
class CacheLookup(Event):
    """Something was looked for in a cache; of a miss ``reason`` says what differs or is missing."""

    cache: str
    key: str
    hit: bool
    reason: str = ""


@dataclass(frozen=True)
class PortArray:
    """What a port of a captured program holds: ``read`` gives the array.

    Of a parameter ``stored`` is the same wherever the same one is read; of an input it is None.
    """

    read: Callable[[], Any]
    stored: Hashable | None = None


@dataclass(frozen=True)
class ProgramStarting(Event):
    """A compiled program is about to run; ``ProgramRun`` or ``ProgramFailed`` of ``run`` follows.

    ``arrays`` gives what the ports of the captured program hold, by name: inputs from the device,
    parameters from where they are stored. They may be read until the sink returns.
    """

    run: int
    plan: CompiledPlan
    backend: str
    device: str
    arrays: Callable[[], Mapping[str, PortArray]]


@dataclass(frozen=True)
class ProgramFailed(Event):
    """A run that started ended with an error."""

    run: int
    error: str


@dataclass(frozen=True)
class ProgramRun(Event):
    """A compiled program ran, and the device was waited for.

    ``parts`` are the seconds of its parts inside ``timing_parts``, in the order of ``explain``.
    """

    program: Program
    backend: str
    device: str
    seconds: float
    parts: tuple[float, ...] = ()
    run: int = 0
    plan: CompiledPlan | None = None


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
