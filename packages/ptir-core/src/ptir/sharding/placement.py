"""Where a value is among workers: replicated, split along an axis, or as addends.

A split gives each worker some ranges along one axis, so that the columns of a fused projection can
go to the worker that has their head. What a worker holds is its ranges one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ptir.types import TensorType

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of places along an axis: in order, apart from each other, none empty."""


@dataclass(frozen=True)
class Replicated:
    """Every worker has the whole value."""

    def local(self, type: TensorType, worker: int) -> TensorType:
        """The type of what a worker holds."""
        return type

    def __str__(self) -> str:
        return "replicated"


@dataclass(frozen=True)
class Split:
    """Each worker has the places ``parts[worker]`` of an axis; every place has one worker."""

    axis: int
    parts: tuple[Ranges, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.axis, self.parts))

    def __hash__(self) -> int:
        return self._hash

    def size(self, worker: int) -> int:
        """How many places a worker has."""
        return length(self.parts[worker])

    @cached_property
    def most(self) -> float:
        """The greatest fraction that a worker has."""
        sizes = [length(part) for part in self.parts]
        return max(sizes) / max(1, sum(sizes))

    def local(self, type: TensorType, worker: int) -> TensorType:
        """The type of what a worker holds."""
        shape = list(type.shape)
        shape[self.axis] = self.size(worker)
        return type.with_shape(tuple(shape))

    def __str__(self) -> str:
        parts = "|".join("+".join(f"{a}:{b}" for a, b in part) for part in self.parts)
        return f"axis {self.axis} {parts}"


@dataclass(frozen=True)
class Partial:
    """Each worker has something of the value's type; ``kind`` (of ``reduce``) brings it together.

    With ``wide`` the addends are f32, to be rounded once when they are added.
    """

    kind: str
    wide: bool = False

    def local(self, type: TensorType, worker: int) -> TensorType:
        """The type of what a worker holds."""
        from ptir.types import F32

        return type.with_dtype(F32) if self.wide else type

    def __str__(self) -> str:
        return f"to {self.kind}"


Placement = Replicated | Split | Partial

REPLICATED: Final = Replicated()


def most_of(placement: Placement) -> float:
    """The greatest fraction of a value that a worker holds."""
    return placement.most if isinstance(placement, Split) else 1.0


# --- ranges ---


def length(ranges: Iterable[tuple[int, int]]) -> int:
    """How many places there are."""
    return sum(end - start for start, end in ranges)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges that do not overlap, in order, neighbours as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if start == end:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return tuple(found)


def ranges_of_units(units: Ranges, count: int, outer: int, inner: int) -> Ranges:
    """The places of ``units`` of ``count``, each ``inner`` places, in all of ``outer`` rounds."""
    period = count * inner
    return merged(
        (turn * period + start * inner, turn * period + end * inner)
        for turn in range(outer)
        for start, end in units
    )


def units_of_ranges(places: Ranges, count: int, outer: int, inner: int) -> Ranges | None:
    """The units whose places these are; None where they are not whole units, alike each round."""
    period = count * inner
    first = [(start, min(end, period)) for start, end in places if start < period]
    if any(start % inner or end % inner for start, end in first):
        return None
    units = merged((start // inner, end // inner) for start, end in first)
    return units if ranges_of_units(units, count, outer, inner) == places else None


def cut(places: Ranges, start: int, end: int) -> Ranges:
    """The places from ``start`` to ``end``, counted from ``start``."""
    inside = ((max(a, start) - start, min(b, end) - start) for a, b in places)
    return merged((a, b) for a, b in inside if a < b)


def below(places: Ranges, limit: int) -> int:
    """How many places are less than ``limit``."""
    return length((a, min(b, limit)) for a, b in places if a < limit)


def runs(parts: tuple[Ranges, ...]) -> Iterator[tuple[int, int, int, int]]:
    """All ranges in order: start, end, the worker, and where they begin in what it holds."""
    listed = sorted((a, b, worker) for worker, part in enumerate(parts) for a, b in part)
    for start, end, worker in listed:
        yield start, end, worker, below(parts[worker], start)


def balanced(count: int, workers: int, grain: int = 1) -> tuple[Ranges, ...] | None:
    """Even parts of ``count`` places in multiples of ``grain``; None where a worker has none.

    The grain counts only where it leaves at least four multiples for each worker.
    """
    unit = grain if count >= 4 * workers * grain else 1
    units = -(-count // unit)
    if units < workers:
        return None
    ends = [min(count, unit * (units * (n + 1) // workers)) for n in range(workers)]
    return tuple(((start, end),) for start, end in zip([0, *ends], ends, strict=False))
