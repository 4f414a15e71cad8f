"""A pass over a kernel: nodes are made anew of rewritten parts; each pass says what it changes.

What a pass needs computed in front of a statement it ``emit``s: names for parts that are used
several times, or loops. Expressions are rewritten in the order in which they would be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import Apply, Cell, Const, Coordinate, Expr, Var
from ptir.codegen.expressions.index import Atom, Axis, Dynamic, Index
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import (
    Gather,
    Hoisted,
    Lane,
    Read,
    ReduceLanes,
    ShuffleXor,
    Splat,
    Word,
)
from ptir.types import BOOL, DType


class Body(NamedTuple):
    """What a pass takes and gives: a kernel's statements, and the buffers that it works on."""

    statements: tuple[nodes.Statement, ...]
    arguments: tuple[Argument, ...]


class Rewriter:
    """A pass that changes nothing; passes override what they change.

    ``types`` says what stands for an element type: in variables, in results and in memory.
    """

    types: ClassVar[Mapping[DType, DType]] = {}

    def __init__(self, body: Body) -> None:
        self.body = body
        self.arguments = {argument.name: argument for argument in body.arguments}
        self.arrays: dict[str, nodes.Array] = {}
        self._out: list[nodes.Statement] = []
        self._done: dict[Expr, Expr] = {}
        self._names = 0

    def rewritten(self) -> Body:
        """The kernel after the pass."""
        statements = self.block(self.body.statements)
        return Body(statements, tuple(map(self.argument, self.body.arguments)))

    def argument(self, one: Argument) -> Argument:
        """A buffer, as it is declared after the pass."""
        return Argument(one.name, self.memory(one.dtype), one.written)

    def memory(self, dtype: DType) -> DType:
        """What elements of a type are in memory after the pass."""
        return self.types.get(dtype, dtype)

    def type(self, dtype: DType) -> DType:
        """What carries values of a type after the pass."""
        return self.types.get(dtype, dtype)

    # --- what stands in front ---

    def emit(self, statement: nodes.Statement) -> None:
        """Put a statement in front of what is rewritten now."""
        self._out.append(statement)

    def name(self) -> str:
        """A name that no kernel has."""
        self._names += 1
        return f"{type(self).__name__.lower()}_{self._names}"

    def let(self, value: Expr) -> Expr:
        """``value`` under a name, unless it is as short as one."""
        if isinstance(value, Const | Var):
            return value
        variable = Var(value.dtype, self.name())
        self.emit(nodes.Let(variable, value))
        return variable

    # --- statements ---

    def block(self, statements: Iterable[nodes.Statement]) -> tuple[nodes.Statement, ...]:
        """The statements of a block, rewritten."""
        before, self._out = self._out, []
        for one in statements:
            self._done = {}
            STATEMENTS[type(one)](self, one)
        found, self._out = self._out, before
        self._done = {}
        return tuple(found)

    def lets(self, one: nodes.Let) -> None:
        """Rewrite a variable that does not change."""
        self.emit(nodes.Let(self.variable(one.variable), self.expr(one.value)))

    def declared(self, one: nodes.Declare) -> None:
        """Rewrite variables that change, and what they begin with."""
        values = tuple(map(self.expr, one.values))
        self.emit(nodes.Declare(tuple(map(self.variable, one.variables)), values))

    def assigned(self, one: nodes.Assign) -> None:
        """Rewrite an assignment."""
        self.emit(nodes.Assign(self.variable(one.variable), self.expr(one.value)))

    def array(self, one: nodes.Array) -> None:
        """Rewrite the declaration of an array."""
        self.arrays[one.name] = one
        self.emit(one._replace(dtype=self.type(one.dtype)))

    def stored(self, one: nodes.Store) -> None:
        """Rewrite a store of elements."""
        at, value = self.index(one.at), self.expr(one.value)
        self.emit(nodes.Store(self.memory(one.dtype), one.memory, at, value))

    def bits_stored(self, one: nodes.StorePacked) -> None:
        """Rewrite a store of some bits of a word."""
        at, mask, bits = self.index(one.at), self.expr(one.mask), self.expr(one.bits)
        self.emit(nodes.StorePacked(one.memory, at, mask, bits))

    def words(self, one: nodes.LoadWords) -> None:
        """Rewrite a load of 16 bytes under a name."""
        at = self.words_at(one.dtype, self.index(one.at))
        self.emit(nodes.LoadWords(one.name, self.memory(one.dtype), one.memory, at))

    def words_stored(self, one: nodes.StoreWords) -> None:
        """Rewrite a store of 16 bytes."""
        words = tuple(map(self.expr, one.words))
        at = self.words_at(one.dtype, self.index(one.at))
        self.emit(nodes.StoreWords(self.memory(one.dtype), one.memory, at, words))

    def words_at(self, dtype: DType, at: Index) -> Index:
        """Where 16 bytes begin, counted in elements as they are after the pass."""
        after = self.memory(dtype)
        if after.itemsize >= dtype.itemsize:
            return at // (after.itemsize // dtype.itemsize)
        return at * (dtype.itemsize // after.itemsize)

    def fetched(self, one: nodes.Prefetch) -> None:
        """Rewrite a prefetch."""
        self.emit(one._replace(dtype=self.memory(one.dtype), at=self.index(one.at)))

    def counted(self, one: nodes.For) -> None:
        """Rewrite a counted loop."""
        first, end = self.expr(one.first), self.expr(one.end)
        self.emit(one._replace(first=first, end=end, body=self.block(one.body)))

    def turned(self, one: nodes.While) -> None:
        """Rewrite any other loop: what belongs in front of its conditions goes into its body."""
        first = None if one.first is None else self.expr(one.first)
        before, condition = self._apart(one.condition)
        behind, after = self._apart(one.after)
        variable, body = self.variable(one.variable), self.block(one.body)
        if before:
            leave = nodes.If(Apply(BOOL, "not", condition), (nodes.Break(),))
            condition, body = Const(BOOL, 1), (*before, leave, *body)
        if behind:
            body = (*body, nodes.Scope((*behind, nodes.Assign(variable, after))))
            after = variable
        self.emit(nodes.While(variable, first, condition, after, body, one.rolled))

    def _apart(self, expr: Expr) -> tuple[tuple[nodes.Statement, ...], Expr]:
        """An expression, and what has to stand in front of it."""
        before, self._out, self._done = self._out, [], {}
        found = self.expr(expr)
        emitted, self._out, self._done = tuple(self._out), before, {}
        return emitted, found

    def branched(self, one: nodes.If) -> None:
        """Rewrite a condition and both its sides."""
        condition = self.expr(one.condition)
        otherwise = None if one.otherwise is None else self.block(one.otherwise)
        self.emit(nodes.If(condition, self.block(one.body), otherwise))

    def scoped(self, one: nodes.Scope) -> None:
        """Rewrite a block."""
        self.emit(nodes.Scope(self.block(one.body)))

    def copied(self, one: nodes.AsyncCopy) -> None:
        """Rewrite a copy of 16 bytes to shared memory."""
        self.emit(one._replace(to=self.index(one.to), at=self.index(one.at)))

    def gathered(self, one: nodes.LoadMatrices) -> None:
        """Rewrite a load of matrices from shared memory."""
        self.emit(one._replace(at=self.index(one.at)))

    # --- expressions ---

    def expr(self, expr: Expr) -> Expr:
        """An expression, rewritten once for every statement that it stands in."""
        found = self._done.get(expr)
        if found is None:
            found = self._done[expr] = EXPRESSIONS[type(expr)](self, expr)
        return found

    def index(self, index: Index) -> Index:
        """An index of rewritten terms."""
        terms = [(self._atom(atom), factor) for atom, factor in index.terms.items()]
        return Index(dict(terms), index.constant)

    def _atom(self, atom: Atom) -> Atom:
        if isinstance(atom, Axis):
            return atom
        if isinstance(atom, Dynamic):
            return Dynamic(self.place(atom.value), atom.low, atom.high)
        return type(atom)(self.index(atom.of), atom.by)

    def place(self, expr: Expr) -> Expr:
        """A rewritten value that is a term of an index."""
        return self.expr(expr)

    def constant(self, one: Const) -> Expr:
        """A literal of what carries its type."""
        return Const(self.type(one.dtype), one.value)

    def variable(self, one: Var) -> Var:
        """A variable of what carries its type."""
        return Var(self.type(one.dtype), one.name, one.wide)

    def applied(self, one: Apply) -> Expr:
        """A scalar op of rewritten operands."""
        return Apply(self.type(one.dtype), one.op, *map(self.expr, one.args))

    def coordinate(self, one: Coordinate) -> Expr:
        """A rewritten index as a number."""
        return Coordinate(self.type(one.dtype), self.index(one.index))

    def read(self, one: Read) -> Expr:
        """Elements of an argument or of an array, at a rewritten index."""
        base = None if one.base is None else self.index(one.base)
        of = self.memory if one.memory in self.arguments else self.type
        return Read(of(one.dtype), one.memory, self.index(one.index), one.wide, base)

    def cell(self, one: Cell) -> Expr:
        """An element of an array, at a rewritten index."""
        return Cell(self.type(one.dtype), one.array, self.index(one.index))

    def exchanged(self, one: ShuffleXor) -> Expr:
        """A rewritten variable in another thread of the subgroup."""
        return ShuffleXor(self.variable(one.of), one.bit)

    def splat(self, one: Splat) -> Expr:
        """A rewritten scalar in every lane."""
        return Splat(self.expr(one.of))

    def gather(self, one: Gather) -> Expr:
        """A rewritten scalar per lane."""
        return Gather(*map(self.expr, one.parts))

    def lane(self, one: Lane) -> Expr:
        """One lane of a rewritten variable."""
        return Lane(self.variable(one.of), one.number)

    def fold(self, one: ReduceLanes) -> Expr:
        """All lanes of a rewritten variable, reduced."""
        return ReduceLanes(one.op, self.variable(one.of))

    def word(self, one: Word) -> Expr:
        """One of the words of 16 bytes, as it is."""
        return one


def _kept(rewriter: Rewriter, one: nodes.Statement) -> None:
    rewriter.emit(one)


STATEMENTS: Final[Mapping[type, Callable[[Rewriter, Any], None]]] = {
    nodes.Let: lambda r, s: r.lets(s),
    nodes.Declare: lambda r, s: r.declared(s),
    nodes.Assign: lambda r, s: r.assigned(s),
    nodes.Array: lambda r, s: r.array(s),
    nodes.Store: lambda r, s: r.stored(s),
    nodes.StorePacked: lambda r, s: r.bits_stored(s),
    nodes.LoadWords: lambda r, s: r.words(s),
    nodes.StoreWords: lambda r, s: r.words_stored(s),
    nodes.Prefetch: lambda r, s: r.fetched(s),
    nodes.For: lambda r, s: r.counted(s),
    nodes.While: lambda r, s: r.turned(s),
    nodes.If: lambda r, s: r.branched(s),
    nodes.Scope: lambda r, s: r.scoped(s),
    nodes.Break: _kept,
    nodes.Barrier: _kept,
    nodes.LoadMatrices: lambda r, s: r.gathered(s),
    nodes.Mma: _kept,
    nodes.AsyncCopy: lambda r, s: r.copied(s),
    nodes.AsyncWait: _kept,
}
"""What a pass does with each statement."""

EXPRESSIONS: Final[Mapping[type, Callable[[Rewriter, Any], Expr]]] = {
    Const: lambda r, x: r.constant(x),
    Var: lambda r, x: r.variable(x),
    Hoisted: lambda r, x: r.expr(x.of),
    Coordinate: lambda r, x: r.coordinate(x),
    Apply: lambda r, x: r.applied(x),
    Read: lambda r, x: r.read(x),
    Cell: lambda r, x: r.cell(x),
    Splat: lambda r, x: r.splat(x),
    Gather: lambda r, x: r.gather(x),
    Lane: lambda r, x: r.lane(x),
    ReduceLanes: lambda r, x: r.fold(x),
    ShuffleXor: lambda r, x: r.exchanged(x),
    Word: lambda r, x: r.word(x),
}
"""What a pass does with each expression."""


class Seen(Rewriter):
    """A pass that changes nothing and remembers all expressions and statements."""

    def __init__(self, body: Body) -> None:
        super().__init__(body)
        self.expressions: dict[Expr, None] = {}
        self.statements: list[nodes.Statement] = []
        self.block(body.statements)

    def emit(self, statement: nodes.Statement) -> None:
        """Remember it; what holds others comes behind them."""
        self.statements.append(statement)
        super().emit(statement)

    def expr(self, expr: Expr) -> Expr:
        """Remember it."""
        self.expressions[expr] = None
        return super().expr(expr)

    def variable(self, one: Var) -> Var:
        """Remember it, also where it is declared."""
        self.expressions[one] = None
        return one
