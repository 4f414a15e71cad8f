"""Sources of which some weights appear as several parameters, computed from them when read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

from ptir.params.processors import usable_processors
from ptir.params.source import Array, Counters, ParamSource, rows_of
from ptir.types import TensorType

WORDS = "words"
"""The part that holds nearly all of a weight's bytes."""

_RUN: Final = 1 << 18
"""Weights that a thread computes the parts of at a time."""

_Arrays: TypeAlias = dict[str, Array]


def in_runs(outputs: int, inputs: int, run: Callable[[slice], _Arrays]) -> _Arrays:
    """The arrays that ``run`` gives for runs of outputs, on every core, one behind the other.

    A run has a small part of a weight's ``outputs``, so that what it computes stays in caches.
    """
    import numpy as np

    step = max(1, _RUN // max(inputs, 1))
    places = [slice(first, first + step) for first in range(0, max(outputs, 1), step)]
    if len(places) == 1:
        return run(places[0])
    with ThreadPoolExecutor(min(len(places), usable_processors())) as pool:
        runs = list(pool.map(run, places))
    return {name: np.concatenate([one[name] for one in runs]) for name in runs[0]}


class PartedSource(ABC):
    """Another source's parameters, and the parts of some of its weights.

    ``parts`` maps the weights to the types of their parts by name; a part is called as
    they are given with.
    """

    def __init__(
        self, source: ParamSource, parts: Mapping[str, Mapping[str, tuple[str, TensorType]]]
    ) -> None:
        self.counters = Counters()
        self._source = source
        self._of = {
            name: (base, part, type_)
            for base, types in parts.items()
            for part, (name, type_) in types.items()
        }
        self._waiting: dict[str, dict[str, Array]] = {}

    @abstractmethod
    def parts_of(self, base: str, rows: slice | None = None) -> Mapping[str, Array]:
        """All parts of a weight, computed; with ``rows`` of these outputs alone."""

    @abstractmethod
    def has_rows(self, base: str) -> bool:
        """Whether outputs are the first axis of a weight's parts."""

    @property
    def keep_dtype(self) -> frozenset[str]:
        """The names whose stored type is the one that programs see."""
        return frozenset(self._of)

    def names(self) -> tuple[str, ...]:
        """The other source's names, each weight's that has parts replaced by theirs."""
        gone = {base for base, _, _ in self._of.values()}
        kept = tuple(name for name in self._source.names() if name not in gone)
        return (*kept, *self._of)

    def type(self, name: str) -> TensorType:
        """The stored type of a parameter or a part."""
        return self._of[name][2] if name in self._of else self._source.type(name)

    def read(self, name: str) -> Array:
        """The values; a part is computed from its weight when it is read.

        The small parts wait from the reading of the words until they are asked for.
        """
        if name not in self._of:
            return self._source.read(name)
        base, part, _ = self._of[name]
        waiting = self._waiting.get(base, {})
        found = waiting.pop(part, None)
        if found is None:
            found = self._computed(base, part)
        elif not waiting:
            del self._waiting[base]
        self.counters.record(name, found.nbytes)
        return found

    def read_rows(self, name: str, first: int, end: int) -> Array:
        """Places of the first axis, where these are outputs computed alone."""
        if name not in self._of:
            return rows_of(self._source, name, first, end)
        base, part, _ = self._of[name]
        if not self.has_rows(base):
            return self.read(name)[first:end]
        found = self.parts_of(base, slice(first, end))[part]
        self.counters.record(name, found.nbytes)
        return found

    def _computed(self, base: str, part: str) -> Array:
        parts = dict(self.parts_of(base))
        found = parts.pop(part)
        if part == WORDS and parts:
            self._waiting[base] = parts
        return found

    def release(self, name: str) -> None:
        """Release the weight behind a part, or the parameter."""
        self._source.release(self._of[name][0] if name in self._of else name)
