"""What a kernel family is: which ops it anchors, and what shared passes ask it.

A family is a row of the table ``families.FAMILIES`` and modules in that folder, which hold what the
row names. They are imported when a kernel is written, not when the table is read: a process that
finds its programs compiled on disk writes none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ptir.backend.contract import OpQuery
from ptir.types import DType

if TYPE_CHECKING:
    from ptir.codegen.fusion.graph import Graph
    from ptir.codegen.schedules.kernel import Group, Kernel, Site

Refusal: TypeAlias = Callable[[OpQuery, Collection[str]], str | None]
"""Why a composite is left to its lowering, or None; given a dialect's dot products."""
Made: TypeAlias = "Mapping[int, Group]"
"""Values, and the groups that store them."""


def whole(*dtypes: DType) -> Refusal:
    """Takes a composite whole where floats are of ``dtypes`` and nothing is empty."""

    def refusal(query: OpQuery, dots: Collection[str]) -> str | None:
        if any(type.dtype.is_float and type.dtype not in dtypes for type in query.operands):
            return f"{query.name} is taken whole for {', '.join(map(str, dtypes))} only"
        if not query.results[0].size or not all(type.size for type in query.operands):
            return f"{query.name} of nothing is left to its lowering"
        return None

    return refusal


@dataclass(frozen=True)
class Family:
    """One row: what it anchors, and in which module of ``families`` each of its functions is.

    ``module`` has ``match(graph, position)``: the group around an anchor, or None. Only it says
    what is in a kernel, which is the same in both schedules. It is asked about anchors alone.
    """

    name: str
    module: str
    ops: tuple[str, ...] = ()
    """The ops that it anchors."""
    composites: Mapping[str, Refusal] = field(default_factory=dict[str, Refusal])
    """The composites that it takes whole, and when not."""
    measured: tuple[Literal["serial", "coop"], ...] = ()
    """The schedules whose tiles are measured with its kernels (``codegen.tuning.tune``)."""
    written: str = ""
    """Where ``write(group, site)``, the serial kernel, is; in ``module`` where nothing is said."""
    coop: str = ""
    """Where ``coop(group, site)``, the kernel of work-groups, is. It may give None."""
    prologue: str = ""
    """Where ``prologue(graph, group, made)`` is: the operand that a group computes itself, and the
    group that does it elsewhere; or None."""
    materialized: str = ""
    """Where ``materialized(graph, group, made)`` is: values that must lie in memory besides
    ``Group.exact``, when ``made`` do anyway."""
    inlined: str = ""
    """Where ``inlined(graph, position)`` is: whether all who read an instruction that the family
    could anchor compute it themselves."""

    def _in(self, module: str, name: str) -> Any:
        return getattr(import_module(f"ptir.codegen.families.{module or self.module}"), name)

    @cached_property
    def _match(self) -> Callable[[Graph, int], Group | None]:
        found: Callable[[Graph, int], Group | None] = self._in("", "match")
        return found

    def match(self, graph: Graph, position: int) -> Group | None:
        """The group around the instruction at a position where that is an anchor, or None."""
        made = graph.block.instructions[position]
        anchor = made.op in self.ops or (made.op == "composite" and made.name in self.composites)
        return self._match(graph, position) if anchor else None

    @cached_property
    def _write(self) -> Callable[[Group, Site], Kernel]:
        write: Callable[[Group, Site], Kernel] = self._in(self.written, "write")
        return write

    def kernel(self, group: Group, site: Site) -> Kernel:
        """The kernel of a group in the site's schedule.

        A family without a coop form is written as for a CPU: one work-item per item.
        """
        made: Kernel | None = None
        if site.coop and self.coop:
            made = self._in(self.coop, "coop")(group, site.single())
        if made is None:
            return self._write(group, replace(site, coop=False))
        fits = made.shared <= site.traits.shared and made.members <= site.traits.group
        assert fits, f"{self.name}: {made.members} members share {made.shared} bytes"
        return made

    def prologue_of(self, graph: Graph, group: Group, made: Made) -> tuple[int, Group] | None:
        """The operand that the group could compute itself, and the group that stores it now."""
        if not self.prologue:
            return None
        found: tuple[int, Group] | None = self._in(self.prologue, "prologue")(graph, group, made)
        return found

    def in_memory(self, graph: Graph, group: Group, made: frozenset[int]) -> Collection[int]:
        """Values that must lie in memory besides ``Group.exact``."""
        if not self.materialized:
            return ()
        found: Collection[int] = self._in(self.materialized, "materialized")(graph, group, made)
        return found

    def is_inlined(self, graph: Graph, position: int) -> bool:
        """Whether readers compute the instruction at a position, which the family could anchor."""
        return bool(self.inlined) and bool(self._in(self.inlined, "inlined")(graph, position))
