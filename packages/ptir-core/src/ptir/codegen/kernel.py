"""What a kernel family makes of a group: the kernel's text, its arguments and its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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

    def text(self, dialect: Dialect, name: str) -> str:
        """The kernel in the dialect."""
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

    def builder(self) -> Builder:
        """Expressions over what is stored."""
        return Builder(self.graph, self.stored)

    def writer(self) -> Writer:
        """An empty kernel body."""
        return Writer(self.dialect)

    def items(self, pieces: int, work: int) -> int:
        """Work-items for ``pieces`` equal pieces of ``work`` elementary operations in all."""
        most = max(1, work // self.tiles.least_work)
        return max(1, min(pieces, self.traits.units * self.tiles.spread, most))


def finished(
    group: Group,
    writer: Writer,
    items: int,
    scratch: tuple[TensorType, ...] = (),
    over: frozenset[int] = frozenset(),
) -> Kernel:
    """The kernel that ``writer`` holds."""
    values: Iterable[int] = writer.arguments
    arguments = tuple(writer.arguments.values())
    head, each = writer.parts()
    made = tuple(values)
    return Kernel(group.family, head, each, arguments, made, items, group, scratch, over)


@dataclass(frozen=True)
class Family:
    """One row of the table of families.

    ``match(graph, position)`` gives the group around a hero, or None; ``write(group, site)``
    gives the kernel.
    """

    name: str
    match: Callable[[Graph, int], Group | None]
    write: Callable[[Group, Site], Kernel]
