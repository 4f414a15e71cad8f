"""What a kernel family makes of a fusion: the kernel's text, its arguments and its size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

from ptir.backend.kernel import Argument, Dialect, Language, Traits
from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Var
from ptir.codegen.expressions.index import Axis, Index, axis
from ptir.codegen.fusion.graph import Builder, Graph
from ptir.codegen.fusion.renumber import Position, Unordered, Value
from ptir.codegen.kernel_ir.nodes import If, Let, Statement
from ptir.codegen.kernel_ir.render import Renderer
from ptir.codegen.kernel_ir.text import Body, printed
from ptir.codegen.kernel_ir.verify import Fault, faults
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.tiles import Tiles
from ptir.types import BOOL, I32, TensorType


@dataclass(frozen=True, eq=False)
class Fusion:
    """The instructions that become one kernel.

    ``inputs`` are the values whose expressions it evaluates, ``outputs`` the values that it stores.
    ``materialized`` operands must lie in memory as they are, but for views. ``output_aliases`` maps
    an output to the operand whose memory it is written into. ``detail`` belongs to the family: a
    record whose fields say which of their numbers are values and instructions, or the position of
    the hero. ``prologue`` is a fusion that would store an operand; it runs inside this kernel.
    """

    family: str
    instructions: frozenset[Position]
    inputs: Unordered
    outputs: tuple[Value, ...]
    detail: Annotated[Any, "position"] = None
    materialized: tuple[Value, ...] = ()
    output_aliases: Mapping[Value, Value] = field(default_factory=dict[int, int])
    prologue: Fusion | None = None

    @property
    def all_instructions(self) -> frozenset[int]:
        """The instructions that the kernel computes as its own, its prologue's among them."""
        own = self.instructions
        return own | self.prologue.all_instructions if self.prologue else own

    @property
    def position(self) -> int:
        """Where in the block the kernel may run: at its last instruction."""
        return max(self.instructions)


def alone(
    family: str, graph: Graph, position: int, exact: tuple[Value, ...] = (), in_place: bool = False
) -> Fusion:
    """The fusion of one instruction; its result may be written over its first operand."""
    made, results = graph.block.instructions[position], graph.results[position]
    shares = {results[0]: made.operands[0]} if in_place else {}
    exact += tuple(shares.values())
    return Fusion(family, frozenset((position,)), made.operands, results, position, exact, shares)


MAX_SCRATCH = 8
"""Most scratch memories of one fusion."""


def scratch_value(fusion: Fusion, number: int) -> int:
    """The value number under which a fusion's scratch memory goes: negative, its own."""
    return -1 - (fusion.position * MAX_SCRATCH + number)


@dataclass(frozen=True, eq=False)
class KernelCode:
    """The statements of a kernel and its arguments, and their text in the dialect they are for.

    Two of one compilation are equal where all that they say is, whatever they are rendered to.
    """

    preamble: tuple[Statement, ...]
    """What every workgroup would do in the same way."""
    body: tuple[Statement, ...]
    """What each workgroup does."""
    arguments: tuple[Argument, ...]
    dialect: Language

    @staticmethod
    def of(writer: Writer) -> KernelCode:
        """What ``writer`` holds."""
        return KernelCode(*writer.body(), tuple(writer.arguments.values()), writer.dialect)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, KernelCode) and self._facts == other._facts)

    def __hash__(self) -> int:
        return self._hash

    @property
    def _facts(self) -> tuple[Hashable, ...]:
        # How many lanes a wide value has stands in no statement.
        return self.preamble, self.body, self.arguments, self.dialect.lanes

    @cached_property
    def _hash(self) -> int:
        return hash(self._facts)

    @cached_property
    def _renderer(self) -> Renderer:
        assert isinstance(self.dialect, Dialect), f"{self.dialect.name} has no texts of statements"
        return Renderer(self.dialect, {a.name: a for a in self.arguments})

    @cached_property
    def preamble_text(self) -> str:
        """The preamble as text."""
        return self._renderer.lines(self.preamble)

    @cached_property
    def body_text(self) -> str:
        """What each workgroup does, as text."""
        return self._renderer.lines(self.body)

    @property
    def text(self) -> str:
        """All that one workgroup does, as text."""
        return f"{self.preamble_text}\n{self.body_text}" if self.preamble else self.body_text

    @property
    def printed(self) -> str:
        """The code in the text form of the kernel IR, which is no language's."""
        return printed(Body(self.arguments, self.preamble, self.body))

    def faults(self, workgroup_size: int, nbytes: Mapping[str, int]) -> list[Fault]:
        """Every rule of a legal kernel that is broken, and where."""
        all = (*self.preamble, *self.body)
        return faults(all, self.arguments, workgroup_size, self.dialect.lanes, nbytes)

    def guarded(self, workgroups: int, workgroup_size: int) -> KernelCode:
        """The same where threads do what workgroups did; the last ones may have nothing to do."""
        thread, group = Var(I32, "thread"), Axis("item", -(-workgroups // workgroup_size))
        place = Index({group: workgroup_size}) + axis("member", workgroup_size)
        item = Let(Var(I32, "item"), thread)
        inside = Apply(BOOL, "lt", thread, Const(I32, workgroups))
        body = (item, *self.preamble, *self.body)
        each = Let(thread, Coordinate(I32, place)), If(inside, body)
        return replace(self, preamble=(), body=each)


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel ready to be built, and the values bound to its arguments, in order.

    A worker that does several workgroups may do the preamble of its code once. ``scratch`` are
    memories that it needs while it runs (see ``scratch_value``). The output may be written over an
    operand in ``may_alias``: element i of that is read only to write element i.
    """

    family: str
    code: KernelCode
    values: tuple[int, ...]
    workgroups: int
    fusion: Fusion
    scratch: tuple[TensorType, ...] = ()
    may_alias: frozenset[int] = frozenset()
    workgroup_size: int = 1
    """Threads of a workgroup. Where there are several (``WorkgroupPrimitives``), each runs preamble
    and body, and finds its local id in ``member``."""
    shared_bytes: int = 0
    """Bytes that the threads of a workgroup share."""
    next: Kernel | None = None
    """What is launched right behind a cooperative kernel: it sees all that this one wrote. It
    belongs to the same fusion and has no scratch of its own."""

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The buffers that it takes, in order."""
        return self.code.arguments

    @property
    def statements(self) -> tuple[Statement, ...]:
        """All that one workgroup does."""
        return (*self.code.preamble, *self.code.body)

    @property
    def scratch_types(self) -> dict[int, TensorType]:
        """Its scratch memories, by the values under which they go."""
        return {scratch_value(self.fusion, n): type for n, type in enumerate(self.scratch)}

    @property
    def launches(self) -> tuple[Kernel, ...]:
        """The kernel and what follows it."""
        return (self, *(self.next.launches if self.next else ()))

    def text(self, dialect: Language, name: str) -> str:
        """The kernel in a language."""
        own = dialect.whole_kernel(self, name)
        if own is not None:
            return own
        assert isinstance(dialect, Dialect), f"{dialect.name} writes no whole kernels"
        code = self.code
        if self.workgroup_size > 1:
            return dialect.workgroup_kernel(name, code.arguments, self.workgroup_size, code.text)
        return dialect.kernel_with_preamble(
            name, code.arguments, code.preamble_text, code.body_text
        )


@dataclass(frozen=True)
class EmitContext:
    """What a family may look at while it writes: the graph, what is stored, and the device.

    ``tiles`` are the numbers that its schedules use on this device.
    """

    graph: Graph
    is_materialized: Callable[[int], bool]
    dialect: Language
    traits: Traits
    tiles: Tiles
    cooperative: bool = False
    """Whether kernels are cooperative, where their family has such a schedule."""

    def scalar(self) -> EmitContext:
        """The context as a cooperative schedule sees it: values are scalars."""
        return replace(self, dialect=self.dialect.scalar())

    def builder(self) -> Builder:
        """Expressions over what is stored."""
        return Builder(self.graph, self.is_materialized)

    def writer(self) -> Writer:
        """An empty kernel body."""
        return Writer(self.dialect)

    def workgroups(self, pieces: int, work: int) -> int:
        """Workgroups for ``pieces`` equal pieces of ``work`` elementary operations in all.

        As many as there are pieces where each becomes a thread (``independent``).
        """
        if self.cooperative:
            return max(1, pieces)
        most = max(1, work // self.tiles.min_work)
        return max(1, min(pieces, self.traits.compute_units * self.tiles.workgroups_per_unit, most))


def finish_kernel(
    fusion: Fusion,
    writer: Writer,
    workgroups: int,
    scratch: tuple[TensorType, ...] = (),
    may_alias: frozenset[int] = frozenset(),
    workgroup_size: int = 1,
) -> Kernel:
    """The kernel that ``writer`` holds; cooperative, where a workgroup has several threads."""
    code, values, shared = KernelCode.of(writer), tuple(writer.arguments), writer.shared_bytes
    given = scratch, may_alias, workgroup_size, shared
    return Kernel(fusion.family, code, values, workgroups, fusion, *given)
