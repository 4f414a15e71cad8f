"""A source whose parameters are computed, when they are read, from those of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ptir.params.source import Array, Counters, ParamSource, lookup
from ptir.types import TensorType


@dataclass(frozen=True)
class View:
    """A parameter: its type, the stored ones that it is made of, and how. Costs no bit."""

    type: TensorType
    stored: tuple[str, ...]
    made: Callable[..., Array]


class ViewedSource:
    """Parameters by name as views of those of ``source``."""

    def __init__(self, source: ParamSource, views: Mapping[str, View]) -> None:
        self.counters = Counters()
        self._source, self._views = source, dict(views)

    def names(self) -> tuple[str, ...]:
        """All names, in the order of the views."""
        return tuple(self._views)

    def type(self, name: str) -> TensorType:
        """Element type and shape of the view."""
        return lookup(self._views, name).type

    def read(self, name: str) -> Array:
        """The values, read-only."""
        view = lookup(self._views, name)
        found = view.made(*map(self._source.read, view.stored)).view()
        found.setflags(write=False)
        self.counters.record(name, found.nbytes)
        return found

    def release(self, name: str) -> None:
        """Release all that the parameter is made of."""
        for stored in lookup(self._views, name).stored:
            self._source.release(stored)
