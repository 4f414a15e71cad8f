"""What a sink is, and how one is in force for the length of a ``with`` block."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from ptir.events import Event, subscribe


class Sink(ABC):
    """A listener that hears every event of a command and is told when the command is over.

    Events may come from several threads. One that raises is named in a ``RuntimeWarning`` and hears
    nothing more; what it listens to goes on.
    """

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Take one event."""

    def finish(self) -> None:  # noqa: B027  most sinks have nothing left to do
        """Called once, after the last event."""


class _Guarded:
    """A sink until it fails."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._failed = False
        self._remove = subscribe(self)

    def __call__(self, event: Event) -> None:
        if not self._failed:
            self._guard(lambda: self._sink(event), type(event).__name__)

    def finish(self) -> None:
        """Stop hearing, and finish the sink if it never failed."""
        if not self._failed:
            self._remove()
            self._guard(self._sink.finish, "the end")

    def _guard(self, call: Callable[[], None], what: str) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  a stranger's code; the run is not its business
            if self._failed:  # another thread was there first
                return
            self._failed = True
            if what != "the end":
                self._remove()
            kind = type(self._sink)
            warnings.warn(
                f"sink {kind.__module__}.{kind.__qualname__} failed on {what}"
                f" ({type(error).__name__}: {error}); it is switched off, and the run goes on",
                RuntimeWarning,
                stacklevel=4,
            )


@contextmanager
def listening_to(sinks: Iterable[Sink]) -> Iterator[None]:
    """Let ``sinks`` hear all events inside the block; each is finished when it ends."""
    with ExitStack() as stack:
        for sink in sinks:
            stack.callback(_Guarded(sink).finish)
        yield
