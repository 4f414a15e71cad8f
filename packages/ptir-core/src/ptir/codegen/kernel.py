"""What a kernel family makes of a group: the kernel's text, its arguments and its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ptir.backend.kernel import Argument, Dialect, Traits
from ptir.codegen.graph import Builder, Graph
from ptir.codegen.tiles import Tiles
from ptir.codegen.writer import Writer
from ptir.types import TensorType


@dataclass(frozen=True, eq=False)
class Group:
    """The instructions that become one kernel.

    ``reads`` are the values whose expressions it evaluates, ``exits`` the values that it stores.
    ``exact`` operands must lie in memory as they are, but for views. ``shares`` maps an exit to
    the operand whose memory it is written into. ``detail`` belongs to the family.
    """

    family: str
    members: frozenset[int]
    reads: tuple[int, ...]
    exits: tuple[int, ...]
    detail: Any = None
    exact: tuple[int, ...] = ()
    shares: Mapping[int, int] = field(default_factory=dict[int, int])

    @property
    def position(self) -> int:
        """Where in the block the kernel may run: at its last instruction."""
        return max(self.members)


SCRATCH_MOST = 8
"""Most scratch memories of one group."""


def scratch_value(group: Group, number: int) -> int:
    """The value number under which a group's scratch memory goes: negative, its own."""
    return -1 - (group.position * SCRATCH_MOST + number)


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel ready to be built, and the values bound to its arguments, in order.

    ``head`` is what every item would do in the same way, ``each`` is done by every item; a worker
    that does several items may do the head once. ``scratch`` are memories that it needs while it
    runs (see ``scratch_value``). The exit may be written over an operand in ``over``: element i of
    that is read only to write element i.
    """

    family: str
    head: str
    each: str
    arguments: tuple[Argument, ...]
    values: tuple[int, ...]
    items: int
    group: Group
    scratch: tuple[TensorType, ...] = ()
    over: frozenset[int] = frozenset()
    members: int = 1
    """Work-items of an item. More than one is a group (``Together``), in which every member runs
    head and body and finds its number in ``member``."""
    shared: int = 0
    """Bytes that the members of a group share."""
    then: Kernel | None = None
    """What is launched right behind a kernel of groups: it sees all that these wrote. It belongs to
    the same group of instructions and has no scratch of its own."""

    @property
    def launches(self) -> tuple[Kernel, ...]:
        """The kernel and what follows it."""
        return (self, *(self.then.launches if self.then else ()))

    def text(self, dialect: Dialect, name: str) -> str:
        """The kernel in the dialect."""
        if self.members > 1:
            return dialect.grouped(name, self.arguments, self.members, self.body)
        return dialect.workers(name, self.arguments, self.head, self.each)

    @property
    def body(self) -> str:
        """All that one item does."""
        return f"{self.head}\n{self.each}" if self.head else self.each


@dataclass(frozen=True)
class Site:
    """What a family may look at while it writes: the graph, what is stored, and the device.

    ``tiles`` are the numbers that its schedules use on this device.
    """

    graph: Graph
    stored: Callable[[int], bool]
    dialect: Dialect
    traits: Traits
    tiles: Tiles
    coop: bool = False
    """Whether kernels are work-groups, where their family has such a schedule."""

    def single(self) -> Site:
        """The site as a coop schedule sees it: values are scalars."""
        return replace(self, dialect=self.dialect.single())

    def builder(self) -> Builder:
        """Expressions over what is stored."""
        return Builder(self.graph, self.stored)

    def writer(self) -> Writer:
        """An empty kernel body."""
        return Writer(self.dialect)

    def items(self, pieces: int, work: int) -> int:
        """Work-items for ``pieces`` equal pieces of ``work`` elementary operations in all.

        As many as there are pieces where an item is a thread of a group (``threads``).
        """
        if self.coop:
            return max(1, pieces)
        most = max(1, work // self.tiles.least_work)
        return max(1, min(pieces, self.traits.units * self.tiles.spread, most))


def finished(
    group: Group,
    writer: Writer,
    items: int,
    scratch: tuple[TensorType, ...] = (),
    over: frozenset[int] = frozenset(),
    members: int = 1,
) -> Kernel:
    """The kernel that ``writer`` holds; of groups, where it has several ``members``."""
    values: Iterable[int] = writer.arguments
    arguments = tuple(writer.arguments.values())
    head, each = writer.parts()
    made = tuple(values)
    groups = members, writer.shared_bytes
    return Kernel(group.family, head, each, arguments, made, items, group, scratch, over, *groups)


@dataclass(frozen=True)
class Family:
    """One row of the table of families.

    ``match(graph, position)`` gives the group around a hero, or None; ``write(group, site)``
    gives the serial kernel, ``coop(group, site)`` the one of work-groups, or None where that has
    no such form. Only ``match`` says what is in a kernel: it is the same in both schedules.
    """

    name: str
    match: Callable[[Graph, int], Group | None]
    write: Callable[[Group, Site], Kernel]
    coop: Callable[[Group, Site], Kernel | None] = lambda group, site: None

    def kernel(self, group: Group, site: Site) -> Kernel:
        """The kernel of a group in the site's schedule.

        A family without a coop form is written as for a CPU: one work-item per item.
        """
        made = self.coop(group, site.single()) if site.coop else None
        if made is None:
            return self.write(group, replace(site, coop=False))
        fits = made.shared <= site.traits.shared and made.members <= site.traits.group
        assert fits, f"{self.name}: {made.members} members share {made.shared} bytes"
        return made
