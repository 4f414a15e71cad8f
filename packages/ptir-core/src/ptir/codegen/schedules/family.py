"""What a kernel family is: which ops are its heroes, and what shared passes ask it.

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
    from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel

Refusal: TypeAlias = Callable[[OpQuery, Collection[str]], str | None]
"""Why a composite is left to its lowering, or None; given a dialect's dot products."""
Made: TypeAlias = "Mapping[int, Fusion]"
"""Values, and the fusions that store them."""


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
    """One row: its heroes, and in which module of ``families`` each of its functions is.

    ``module`` has ``match(graph, position)``: the fusion around a hero, or None. Only it says
    what is in a kernel, which is the same in both schedules. It is asked about heroes alone.
    """

    name: str
    module: str
    ops: tuple[str, ...] = ()
    """The ops that are its heroes."""
    composites: Mapping[str, Refusal] = field(default_factory=dict[str, Refusal])
    """The composites that it takes whole, and when not."""
    measured: tuple[Literal["serial", "coop"], ...] = ()
    """The schedules whose tiles are measured with its kernels (``codegen.tuning.tune``)."""
    panels: bool = False
    """Whether its kernels read packed weights panel by panel, not element by element."""
    emit: str = ""
    """Where ``emit(fusion, context)``, the serial kernel, is; in ``module`` where empty."""
    emit_cooperative: str = ""
    """Where ``emit_cooperative(fusion, context)``, the cooperative kernel, is. It may give None."""
    prologue: str = ""
    """Where ``prologue(graph, fusion, made)`` is: the operand that a fusion computes itself, and
    the fusion that does it elsewhere; or None."""
    materialized: str = ""
    """Where ``materialized(graph, fusion, made)`` is: values that must lie in memory besides
    ``Fusion.materialized``, when ``made`` do anyway."""
    inlined: str = ""
    """Where ``inlined(graph, position)`` is: whether all who read an instruction that the family
    could take as a hero compute it themselves."""

    def _in(self, module: str, name: str) -> Callable[..., Any]:
        """A function of a module of ``families``; where that is empty, of its own."""
        where = import_module(f"ptir.codegen.families.{module or self.module}")
        found: Callable[..., Any] = getattr(where, name)
        return found

    @cached_property
    def _match(self) -> Callable[[Graph, int], Fusion | None]:
        return self._in("", "match")

    def match(self, graph: Graph, position: int) -> Fusion | None:
        """The fusion around the instruction at a position where that is a hero, or None."""
        made = graph.block.instructions[position]
        hero = made.op in self.ops or (made.op == "composite" and made.name in self.composites)
        return self._match(graph, position) if hero else None

    @cached_property
    def _emit(self) -> Callable[[Fusion, EmitContext], Kernel]:
        return self._in(self.emit, "emit")

    def kernel(self, fusion: Fusion, context: EmitContext) -> Kernel:
        """The kernel of a fusion in the context's schedule.

        A family without a cooperative form is written as for a CPU: one thread per tile.
        """
        made: Kernel | None = None
        if context.cooperative and self.emit_cooperative:
            made = self._in(self.emit_cooperative, "emit_cooperative")(fusion, context.scalar())
        if made is None:
            return self._emit(fusion, replace(context, cooperative=False))
        fits = (
            made.shared_bytes <= context.traits.shared_memory_bytes
            and made.workgroup_size <= context.traits.max_workgroup_size
        )
        assert fits, f"{self.name}: {made.workgroup_size} threads share {made.shared_bytes} bytes"
        return made

    def prologue_of(self, graph: Graph, fusion: Fusion, made: Made) -> tuple[int, Fusion] | None:
        """The operand that the fusion could compute itself, and the fusion that stores it now."""
        if not self.prologue:
            return None
        found: tuple[int, Fusion] | None = self._in(self.prologue, "prologue")(graph, fusion, made)
        return found

    def in_memory(self, graph: Graph, fusion: Fusion, made: frozenset[int]) -> Collection[int]:
        """Values that must lie in memory besides ``Fusion.materialized``."""
        if not self.materialized:
            return ()
        found: Collection[int] = self._in(self.materialized, "materialized")(graph, fusion, made)
        return found

    def is_inlined(self, graph: Graph, position: int) -> bool:
        """Whether readers compute the instruction at a position, a possible hero of the family."""
        return bool(self.inlined) and bool(self._in(self.inlined, "inlined")(graph, position))
