"""What a sink is, and how one is in force for the length of a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from ptir.events import Event, subscribe


class Sink(ABC):
    """A listener that hears every event of a command and is told when the command is over.

    Events may come from several threads.
    """

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Take one event."""

    def finish(self) -> None:  # noqa: B027  most sinks have nothing left to do
        """Called once, after the last event."""


@contextmanager
def listening_to(sinks: Iterable[Sink]) -> Iterator[None]:
    """Let ``sinks`` hear all events inside the block; each is finished when it ends."""
    with ExitStack() as stack:
        for sink in sinks:
            stack.callback(sink.finish)
            stack.callback(subscribe(sink))
        yield
