"""**What a legal kernel is**: types, scopes, memories, bounds, barriers, said before any compiler.

What comes in: a kernel's statements and arguments. What goes out: every rule that it breaks, and
where it does first (``faults``). ``CHECKS`` has a row per statement and ``VALUES`` one per
expression: each goes through its parts, and asks the modules of the rules' subjects. Types that go
together are in ``signatures.py``, names in ``scopes.py``, memories and their ends in
``memories.py``, where numbers lie in ``ranges.py``, and what threads do together in
``uniformity.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import Apply, Const, Expr, Var, is_alike
from ptir.codegen.expressions.index import Axis, Dynamic, Index
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.memories import Memories
from ptir.codegen.kernel_ir.ranges import narrow, number
from ptir.codegen.kernel_ir.scopes import Known, Scopes
from ptir.codegen.kernel_ir.signatures import fits, mistyped, shown
from ptir.codegen.kernel_ir.text import line
from ptir.codegen.kernel_ir.uniformity import apart, varies
from ptir.codegen.kernel_ir.values import (
    CHILDREN,
    FetchAdd,
    Gather,
    Hoisted,
    Lane,
    Node,
    Poll,
    Read,
    ShuffleXor,
    Splat,
    Word,
)
from ptir.types import BOOL, I32, U32, DType

Statements = Sequence[nodes.Statement]


@dataclass(frozen=True)
class Fault:
    """A rule that a kernel breaks, as a sentence, and the innermost statement that does."""

    rule: str
    statement: nodes.Statement | None = None
    """None where it is none alone."""

    def __str__(self) -> str:
        return self.rule + (f", in `{line(self.statement)}`" if self.statement else "")


class _Verifier:
    """One pass over a kernel: the scopes at the node at hand, and the faults found so far."""

    def __init__(self, memories: Memories, workgroup_size: int, lanes: int) -> None:
        begun = [Var(I32, "item")] + [Var(I32, "member")] * (workgroup_size > 1)
        self.scopes = Scopes(*(Known(v, False, v.name == "member") for v in begun))
        self.memories, self.workgroup_size, self.lanes = memories, workgroup_size, lanes
        self._statement: nodes.Statement | None = None
        self.found: dict[str, Fault] = {}

    def wrong(self, *rules: str) -> None:
        """Record rules that are broken, each once."""
        for said in rules:
            self.found.setdefault(said, Fault(said, self._statement))

    def block(self, statements: Statements) -> None:
        """Check statements, in order."""
        for one in statements:
            self._statement = one
            CHECKS[type(one)](self, one)

    def together(self, what: str) -> None:
        """Check that all threads of the workgroup do ``what`` together."""
        self.wrong(*apart(self.scopes, self.workgroup_size, what))

    def declare(self, known: Known) -> None:
        """Make a name known from here on; it must be new in its block."""
        if known.variable.name in self.scopes.blocks[-1]:
            self.wrong(f"{known.variable.name} is declared twice in a block")
        self.scopes.declare(known)

    # --- values ---

    def value(self, one: Node) -> None:
        """Check a value, an index or a term of one, its parts first."""
        for part in CHILDREN[type(one)](one):
            self.value(part)
        if rule := VALUES.get(type(one)):
            rule(self, one)

    def scalar(self, expr: Expr, dtype: DType, what: str) -> None:
        """Check an expression that must be one value of a type."""
        self.single(expr, dtype, what)
        self.value(expr)

    def single(self, expr: Expr, dtype: DType, what: str) -> None:
        """Check that an expression is one value of a type."""
        if expr.wide or expr.dtype != dtype:
            self.wrong(f"{what} is {shown(expr)}; it must be {dtype}")

    def read(self, variable: Var) -> None:
        """Check that a variable is read as it is declared."""
        known = self.scopes[variable.name]
        if known is None:
            self.wrong(f"{variable.name} is read and not declared")
        elif known.variable != variable:
            was, now = shown(known.variable), shown(variable)
            self.wrong(f"{variable.name} is declared as {was} and read as {now}")

    def axis(self, axis: Axis) -> None:
        """Check a loop variable, which an index takes for below the size of its loop."""
        self.read(Var(I32, axis.name))
        known = self.scopes[axis.name]
        if known and known.counted and known.range and known.range[1] >= axis.size:
            last = known.range[1]
            self.wrong(f"{axis.name} goes up to {last}, and is taken for below {axis.size}")

    def dynamic(self, one: Dynamic) -> None:
        """Check that a value in an index is one integer."""
        if one.value.wide or not one.value.dtype.is_integer:
            self.wrong(f"an index holds {shown(one.value)}; it must be one integer")

    def lane(self, expr: Lane) -> None:
        """Check that there is the lane that is read."""
        if not expr.of.wide or not 0 <= expr.number < self.lanes:
            self.wrong(f"lane {expr.number} of {shown(expr.of)}, which has {self.lanes} lanes")

    def gathered(self, expr: Gather) -> None:
        """Check that each lane gets one scalar of the type."""
        if len(expr.parts) != self.lanes:
            self.wrong(f"{len(expr.parts)} scalars are gathered into {self.lanes} lanes")
        for one in expr.parts:
            if one.wide or one.dtype != expr.dtype:
                self.wrong(f"{shown(one)} is gathered into {expr.dtype}")

    def exchanged(self, expr: ShuffleXor) -> None:
        """Check that a value is exchanged by all threads, across one bit of their number."""
        self.together("an exchange of values")
        if expr.bit < 1 or expr.bit & (expr.bit - 1) or expr.bit >= self.workgroup_size:
            self.wrong(f"threads exchange across {expr.bit}: no power of two below their number")

    def touched(
        self, memory: str, dtype: DType, at: Index, count: int = 1, written: bool = False
    ) -> None:
        """Check that elements that are read or written lie in their memory."""
        self.wrong(*self.memories.touched(self.scopes, memory, dtype, at, count, written))

    def written(self, memory: str, dtype: DType, at: Index, count: int = 1) -> None:
        """Check elements that a statement writes, and where."""
        self.touched(memory, dtype, at, count, written=True)
        self.value(at)

    # --- variables ---

    def declared(self, one: nodes.Declare) -> None:
        """Check variables that change, and what they begin with."""
        if one.values and len(one.values) != len(one.variables):
            self.wrong(f"{len(one.variables)} variables begin with {len(one.values)} values")
        for place, variable in enumerate(one.variables):
            values = one.values[place : place + 1]
            for value in values:
                if not fits(variable, value):
                    self.wrong(f"{variable.name} is {shown(variable)}, begins with {shown(value)}")
                self.value(value)
            self.declare(Known(variable, True, varies(self.scopes, *values)))

    def let(self, one: nodes.Let) -> None:
        """Check a variable that does not change, and what it holds."""
        name, value = one.variable.name, one.value
        if not fits(one.variable, value):
            self.wrong(f"{name} is {shown(one.variable)} and holds {shown(value)}")
        self.value(value)
        varying, within = varies(self.scopes, value), number(self.scopes, value)
        self.declare(Known(one.variable, False, varying, within))

    def assigned(self, one: nodes.Assign) -> None:
        """Check that a variable may change, and that the value fits it."""
        self.value(one.value)
        name, known = one.variable.name, self.scopes[one.variable.name]
        if known is None:
            return self.wrong(f"{name} is assigned and not declared")
        if not known.changes:
            self.wrong(f"{name} is assigned, and does not change")
        if known.variable != one.variable or not fits(one.variable, one.value):
            self.wrong(f"{name} is {shown(known.variable)} and is assigned {shown(one.value)}")
        self.scopes.changed(name, varies(self.scopes, one.value) or self.scopes.diverged)
        return None

    # --- memory ---

    def stored(self, one: nodes.Store) -> None:
        """Check that the value of a store fits the memory."""
        self.value(one.value)
        element = self.memories.element(one.memory, one.dtype, written=True)
        if not is_alike(one.value.dtype, element):
            self.wrong(f"{one.memory}: {shown(one.value)} is stored as {element}")
        count = self.lanes if one.value.wide else 1
        self.written(one.memory, one.dtype, one.at, count)

    def words(self, one: nodes.LoadWords) -> None:
        """Check 16 bytes that are loaded under a name."""
        self.memories.words.add(one.name)
        self.sixteen(one.memory, one.dtype, one.at, 4, written=False)

    def words_stored(self, one: nodes.StoreWords) -> None:
        """Check 16 bytes that are written as words."""
        for word in one.words:
            self.scalar(word, U32, "a word of 16 bytes")
        self.sixteen(one.memory, one.dtype, one.at, len(one.words), written=True)

    def copied(self, one: nodes.AsyncCopy) -> None:
        """Check both ends of a copy of 16 bytes to shared memory."""
        self.sixteen(one.array, U32, one.to, 4, written=True)
        self.sixteen(one.memory, U32, one.at, 4, written=False)

    def sixteen(self, memory: str, dtype: DType, at: Index, count: int, written: bool) -> None:
        """Check that 16 bytes lie in their memory, at an address that 16 divides."""
        self.wrong(*self.memories.uneven(memory, dtype, at))
        self.touched(memory, dtype, at, count, written)
        self.value(at)

    def bits_stored(self, one: nodes.StorePacked) -> None:
        """Check that mask and bits are words, and the word that they change."""
        for word in (one.mask, one.bits):
            self.scalar(word, U32, "the bits of a word")
        self.written(one.memory, U32, one.at)

    def announced(self, one: nodes.Signal) -> None:
        """Check what a counter grows by, and where it is."""
        self.scalar(one.by, I32, "what a counter grows by")
        self.written(one.memory, I32, one.at)

    # --- blocks ---

    def counted(self, one: nodes.For) -> None:
        """Check a counted loop: its ends, its step and its body."""
        for one_end in (one.first, one.end):
            self.scalar(one_end, I32, "an end of a loop")
        if one.step < 1:
            self.wrong(f"a loop of {one.variable} goes by {one.step}")
        first, end = number(self.scopes, one.first), number(self.scopes, one.end)
        within = (first[0], end[1] - 1) if first and end else None
        literal = isinstance(one.first, Const) and isinstance(one.end, Const)
        varying = varies(self.scopes, one.first, one.end)
        variable = Known(Var(I32, one.variable), False, varying, within, literal and one.step == 1)
        self._loop(variable, None, varying, one.body)

    def turned(self, one: nodes.While) -> None:
        """Check any other loop: its condition, what follows an iteration, and its body."""
        begin = one.variable if one.first is None else one.first
        self.value(begin)
        varying = varies(self.scopes, begin)
        with self.scopes.nested():
            if one.first is not None:
                self.declare(Known(one.variable, True, varying))
            self.scalar(one.condition, BOOL, "the condition of a loop")
            self.value(one.after)
            varying |= varies(self.scopes, one.condition, one.after)
            self._loop(None, one.condition, varying, one.body)

    def _loop(
        self, variable: Known | None, holds: Expr | None, varying: bool, body: Statements
    ) -> None:
        """A body is done several times: what its end makes varying is so when it begins again."""
        arrays = dict(self.memories.arrays)
        for _ in range(2):
            self.memories.arrays = dict(arrays)
            with self.scopes.nested(varying, loop=True):
                if variable is not None:
                    self.scopes.declare(replace(variable))
                if holds is not None:
                    narrow(self.scopes, holds)
                self.block(body)

    def branched(self, one: nodes.If) -> None:
        """Check a condition and both its sides."""
        self.scalar(one.condition, BOOL, "a condition")
        varying = varies(self.scopes, one.condition)
        with self.scopes.nested(varying):
            narrow(self.scopes, one.condition)
            self.block(one.body)
        with self.scopes.nested(varying):
            self.block(one.otherwise or ())

    def switched(self, one: nodes.Switch) -> None:
        """Check the number that chooses a body, and all bodies."""
        self.scalar(one.value, I32, "the number of a body")
        varying = varies(self.scopes, one.value)
        if len(set(one.numbers)) != len(one.bodies):
            self.wrong(f"{len(one.bodies)} bodies have the numbers {one.numbers}")
        for body in one.bodies:
            with self.scopes.nested(varying):
                self.block(body)

    def scoped(self, one: nodes.Scope) -> None:
        """Check a block, whose names end with it."""
        with self.scopes.nested():
            self.block(one.body)

    def left(self, one: nodes.Break) -> None:
        """Check that there is a loop to leave."""
        if not self.scopes.loops:
            self.wrong("a break stands in no loop")

    # --- phases and matrices ---

    def called(self, one: nodes.Call) -> None:
        """Check the counters and the addresses that a phase is called with."""
        self.scalar(one.workgroups, I32, "the workgroups of a phase")
        self.written(one.memory, I32, one.at)
        self.value(one.first)
        if one.addresses not in self.memories.addresses:
            self.wrong(f"{one.addresses} holds no addresses")
        if len(one.dtypes) != len(one.written):
            self.wrong(f"{one.function} takes {len(one.dtypes)} or {len(one.written)} buffers")

    def gathering(self, one: nodes.LoadMatrices) -> None:
        """Check that matrices are loaded by all threads, from shared memory into variables."""
        self.together("a gather of matrices")
        self.touched(one.array, U32, one.at)
        self.value(one.at)
        self._filled(one.variables)

    def multiplied(self, one: nodes.Mma) -> None:
        """Check that a matrix instruction is done by all threads, on variables."""
        self.together("a matrix instruction")
        for variable in (*one.left, *one.right):
            self.read(variable)
        self._filled(one.sums)

    def _filled(self, variables: Iterable[Var]) -> None:
        for name in (variable.name for variable in variables):
            known = self.scopes[name]
            if known is None or not known.changes:
                self.wrong(f"{name} is written, and is no variable that changes")
            else:
                self.scopes.changed(name, varying=True)


VALUES: Final[Mapping[type, Callable[[_Verifier, Any], None]]] = {
    Var: _Verifier.read,
    Axis: _Verifier.axis,
    Dynamic: _Verifier.dynamic,
    Apply: lambda v, x: v.wrong(*mistyped(x)),
    Read: lambda v, x: v.touched(x.memory, x.dtype, x.place, v.lanes if x.wide else 1),
    Hoisted: lambda v, x: v.single(x.of, x.dtype, "what is computed in place"),
    Splat: lambda v, x: v.single(x.of, x.dtype, "what is put into every lane"),
    Gather: _Verifier.gathered,
    Lane: _Verifier.lane,
    ShuffleXor: _Verifier.exchanged,
    Word: lambda v, x: v.wrong(*v.memories.unworded(x.of)),
    FetchAdd: lambda v, x: v.touched(x.memory, I32, x.index, written=True),
    Poll: lambda v, x: v.touched(x.memory, I32, x.index),
}
"""What is asked of each value beside its parts."""

CHECKS: Final[Mapping[type, Callable[[_Verifier, Any], None]]] = {
    nodes.Let: _Verifier.let,
    nodes.Declare: _Verifier.declared,
    nodes.Assign: _Verifier.assigned,
    nodes.Array: lambda v, s: v.wrong(*v.memories.array(s, v.workgroup_size)),
    nodes.Store: _Verifier.stored,
    nodes.LoadWords: _Verifier.words,
    nodes.StoreWords: _Verifier.words_stored,
    nodes.StorePacked: _Verifier.bits_stored,
    nodes.Prefetch: lambda v, s: v.value(s.at),
    nodes.For: _Verifier.counted,
    nodes.While: _Verifier.turned,
    nodes.If: _Verifier.branched,
    nodes.Scope: _Verifier.scoped,
    nodes.Break: _Verifier.left,
    nodes.Barrier: lambda v, s: v.together("a barrier"),
    nodes.LoadMatrices: _Verifier.gathering,
    nodes.Mma: _Verifier.multiplied,
    nodes.AsyncCopy: _Verifier.copied,
    nodes.AsyncWait: lambda v, s: None,
    nodes.Signal: _Verifier.announced,
    nodes.Fence: lambda v, s: None,
    nodes.Yield: lambda v, s: None,
    nodes.Switch: _Verifier.switched,
    nodes.Addresses: lambda v, s: v.wrong(*v.memories.listed(s)),
    nodes.Call: _Verifier.called,
}
"""What is asked of each statement."""


def faults(
    statements: Statements,
    arguments: Sequence[Argument],
    workgroup_size: int,
    lanes: int,
    nbytes: Mapping[str, int],
) -> list[Fault]:
    """Every rule that a kernel breaks, and where it does first; nothing where it is legal.

    ``nbytes`` are the bytes behind each argument, where they are known.
    """
    verifier = _Verifier(Memories(arguments, nbytes), workgroup_size, lanes)
    verifier.block(statements)
    return [*verifier.found.values(), *map(Fault, verifier.memories.unused())]
