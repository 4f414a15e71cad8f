"""Which parameters are resident while a program runs: a table made from its launches.

A program's launches read parameters in an order that is known before it runs. Under a budget they
are grouped into *stages*: what a stage reads is resident together, what the next one reads is
fetched meanwhile, and what was used longest ago goes. ``ResidentSet`` is that rule; the table is
what it says when the program runs again and again, and runs follow the same rule live, because
several programs share a budget.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class Moves(NamedTuple):
    """What goes, in order, and what comes in its place."""

    dropped: tuple[str, ...]
    fetched: tuple[str, ...]


class ResidentSet:
    """Names of what is resident, with bytes, the least recently used first.

    ``peak`` is the most that there ever was at once.
    """

    def __init__(self) -> None:
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self.nbytes = self.peak = 0

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._sizes))

    def use(self, needed: Mapping[str, int], room: int, kept: Collection[str] = ()) -> Moves:
        """Make what is ``needed`` (names and bytes) resident, within ``room`` bytes in all.

        It must fit alone. What is ``kept`` stays too: then only as much of the needed comes as
        fits beside it, in order.
        """
        dropped: list[str] = []
        fetched: list[str] = []
        staying = {*needed, *kept}
        for name in needed:
            if name in self._sizes:
                self._sizes.move_to_end(name)
        for name, nbytes in needed.items():
            if name not in self._sizes and self._held(staying) + nbytes <= room:
                dropped += self._leaving(room - nbytes, staying)
                self._sizes[name] = nbytes
                self.nbytes += nbytes
                fetched.append(name)
        self.peak = max(self.peak, self.nbytes)
        return Moves(tuple(dropped), tuple(fetched))

    def shrink(self, room: int) -> tuple[str, ...]:
        """Let the least recently used go until ``room`` bytes are left: their names."""
        return tuple(self._leaving(max(0, room), ()))

    def _held(self, names: Collection[str]) -> int:
        """Bytes of those of the names that are resident."""
        return sum(nbytes for name, nbytes in self._sizes.items() if name in names)

    def _leaving(self, room: int, staying: Collection[str]) -> list[str]:
        """Let the least recently used go until at most ``room`` bytes are left."""
        found: list[str] = []
        for name in self:
            if self.nbytes <= room:
                break
            if name not in staying:
                self.forget(name)
                found.append(name)
        return found

    def forget(self, name: str) -> None:
        """Take one out."""
        self.nbytes -= self._sizes.pop(name)

    def clear(self) -> None:
        """Take all out."""
        self._sizes.clear()
        self.nbytes = 0


@dataclass(frozen=True)
class Stage:
    """Launches ``first`` up to ``end`` of a run, and what is resident for them."""

    first: int
    end: int
    needed: tuple[str, ...]
    late: tuple[str, ...] = ()
    """What of it had no room beside the stage before, and is waited for."""
    dropped: tuple[str, ...] = ()
    """What goes before and while they run."""
    fetched: tuple[str, ...] = ()
    """What the next stage reads and is fetched meanwhile."""
    resident: int = 0
    """Bytes of parameters, those on their way included."""


@dataclass(frozen=True)
class ResidencySchedule:
    """The stages of a program that runs again and again, with ``room`` bytes for parameters."""

    room: int
    sizes: Mapping[str, int]
    """Bytes of every parameter that a run reads."""
    stages: tuple[Stage, ...]

    @property
    def read(self) -> int:
        """Bytes that each run reads anew, from where the parameters come from."""
        moved = (name for stage in self.stages for name in (*stage.late, *stage.fetched))
        return sum(self.sizes[name] for name in moved)

    @property
    def peak(self) -> int:
        """Most bytes of parameters that are resident at once."""
        return max((stage.resident for stage in self.stages), default=0)


def smallest_room(reads: Sequence[Collection[str]], sizes: Mapping[str, int]) -> int:
    """Bytes that the launch takes which reads most: less than that no schedule can do with."""
    return max((_total(names, sizes) for names in reads), default=0)


def schedule(
    reads: Sequence[Collection[str]], sizes: Mapping[str, int], room: int
) -> ResidencySchedule:
    """The table for launches that read parameters called ``reads``, in ``room`` bytes.

    A stage has as many launches as read half of the room, so that the next one fits beside it;
    one launch may take more. There must be ``smallest_room``.
    """
    grouped = [*_grouped(reads, sizes, room // 2)]
    resident = ResidentSet()
    rounds = [_round(grouped, sizes, room, resident) for _ in range(2)]
    return ResidencySchedule(room, dict(sizes), rounds[-1])


def _grouped(
    reads: Sequence[Collection[str]], sizes: Mapping[str, int], most: int
) -> Iterator[Stage]:
    first = 0
    needed: dict[str, None] = {}
    for number, names in enumerate(reads):
        both = {**needed, **dict.fromkeys(sorted(names))}
        if needed and names and len(both) > len(needed) and _total(both, sizes) > most:
            yield Stage(first, number, tuple(needed))
            first, both = number, dict.fromkeys(sorted(names))
        needed = both
    if first < len(reads):
        yield Stage(first, len(reads), tuple(needed))


def _round(
    grouped: Sequence[Stage], sizes: Mapping[str, int], room: int, resident: ResidentSet
) -> tuple[Stage, ...]:
    """The stages of one run, which finds what the run before left."""
    found: list[Stage] = []
    for number, stage in enumerate(grouped):
        following = grouped[(number + 1) % len(grouped)].needed
        late = resident.use(_sized(stage.needed, sizes), room)
        ahead = resident.use(_sized(following, sizes), room, stage.needed)
        dropped = (*late.dropped, *ahead.dropped)
        found.append(
            replace(
                stage,
                late=late.fetched,
                dropped=dropped,
                fetched=ahead.fetched,
                resident=resident.nbytes,
            )
        )
    return tuple(found)


def _sized(names: Collection[str], sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: sizes[name] for name in names}


def _total(names: Collection[str], sizes: Mapping[str, int]) -> int:
    return sum(sizes[name] for name in names)
