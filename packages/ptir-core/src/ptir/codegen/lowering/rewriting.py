"""A pass over a kernel: nodes are made anew of rewritten parts; each pass says what it changes.

What a pass needs computed in front of a statement it ``emit``s: names for parts that are used
several times, or loops. Expressions are rewritten in the order in which they would be computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import Apply, Cell, Const, Coordinate, Expr, Var
from ptir.codegen.expressions.index import Atom, Axis, Dynamic, Index
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import Hoisted, Read
from ptir.errors import UnsupportedError
from ptir.types import BOOL, DType


class Body(NamedTuple):
    """What a pass takes and gives: a kernel's statements, and the buffers that it works on."""

    statements: tuple[nodes.Statement, ...]
    arguments: tuple[Argument, ...]


class Rewriter:
    """A pass that changes nothing: every node is made anew of its rewritten parts.

    A pass has a method for each kind of node that it changes, ``visit_`` and the name of its class.
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

    @classmethod
    def without(cls, body: Body) -> Body:
        """The kernel after the pass; raises ``UnsupportedError`` where nothing can stand for it."""
        return cls(body).rewritten()

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Where what the pass removes still stands: here, the types that others stand for."""
        return found(body, *cls.types)

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

    # --- any node ---

    def _visit(self, one: nodes.Statement | Expr) -> Any:
        """What the pass makes of a node of this kind; nothing where it is made anew."""
        visit = getattr(self, f"visit_{type(one).__name__.lower()}", self.anew)
        return visit(one)

    def anew(self, one: Any) -> Any:
        """A node of rewritten parts; a statement is emitted."""
        if isinstance(one, Expr):
            made: Any = type(one)
            return made(*map(self.part, one.made_of))
        return self.emit(type(one)(*map(self.part, one)))

    def part(self, one: Any) -> Any:
        """A part of a node: an expression, an index, several of these, or a fact."""
        if isinstance(one, tuple):
            return tuple(map(self.part, one))
        if isinstance(one, Index):
            return self.index(one)
        return self.expr(one) if isinstance(one, Expr) else one

    # --- statements ---

    def block(self, statements: Iterable[nodes.Statement]) -> tuple[nodes.Statement, ...]:
        """The statements of a block, rewritten."""
        before, self._out = self._out, []
        for one in statements:
            self._done = {}
            self._visit(one)
        found, self._out = self._out, before
        self._done = {}
        return tuple(found)

    def visit_array(self, one: nodes.Array) -> None:
        """Of what carries its elements."""
        self.arrays[one.name] = one
        self.emit(one._replace(dtype=self.type(one.dtype)))

    def visit_store(self, one: nodes.Store) -> None:
        """Of what its elements are in memory."""
        at, value = self.index(one.at), self.expr(one.value)
        self.emit(nodes.Store(self.memory(one.dtype), one.memory, at, value))

    def visit_loadwords(self, one: nodes.LoadWords) -> None:
        """From where the 16 bytes begin after the pass."""
        at = self._words_at(one.dtype, self.index(one.at))
        self.emit(nodes.LoadWords(one.name, self.memory(one.dtype), one.memory, at))

    def visit_storewords(self, one: nodes.StoreWords) -> None:
        """To where the 16 bytes begin after the pass."""
        words = tuple(map(self.expr, one.words))
        at = self._words_at(one.dtype, self.index(one.at))
        self.emit(nodes.StoreWords(self.memory(one.dtype), one.memory, at, words))

    def _words_at(self, dtype: DType, at: Index) -> Index:
        """Where 16 bytes begin, counted in elements as they are after the pass."""
        after = self.memory(dtype)
        if after.itemsize >= dtype.itemsize:
            return at // (after.itemsize // dtype.itemsize)
        return at * (dtype.itemsize // after.itemsize)

    def visit_prefetch(self, one: nodes.Prefetch) -> None:
        """Of what its elements are in memory."""
        self.emit(one._replace(dtype=self.memory(one.dtype), at=self.index(one.at)))

    def visit_for(self, one: nodes.For) -> None:
        """The ends are computed in front."""
        first, end = self.expr(one.first), self.expr(one.end)
        self.emit(one._replace(first=first, end=end, body=self.block(one.body)))

    def visit_while(self, one: nodes.While) -> None:
        """What belongs in front of its conditions goes into its body."""
        first = None if one.first is None else self.expr(one.first)
        before, condition = self._apart(one.condition)
        behind, after = self._apart(one.after)
        variable, body = self.part(one.variable), self.block(one.body)
        if before:
            leave = nodes.If(~condition, (nodes.Break(),))
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

    def visit_if(self, one: nodes.If) -> None:
        """Both sides behind the condition."""
        condition = self.expr(one.condition)
        otherwise = None if one.otherwise is None else self.block(one.otherwise)
        self.emit(nodes.If(condition, self.block(one.body), otherwise))

    def visit_scope(self, one: nodes.Scope) -> None:
        """A block."""
        self.emit(nodes.Scope(self.block(one.body)))

    # --- expressions ---

    def expr(self, expr: Expr) -> Expr:
        """An expression, rewritten once for every statement that it stands in."""
        found = self._done.get(expr)
        if found is None:
            found = self._done[expr] = self._visit(expr)
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

    def visit_const(self, one: Const) -> Expr:
        """A literal of what carries its type."""
        return Const(self.type(one.dtype), one.value)

    def visit_var(self, one: Var) -> Expr:
        """A variable of what carries its type."""
        return Var(self.type(one.dtype), one.name, one.wide)

    def visit_hoisted(self, one: Hoisted) -> Expr:
        """What is computed in place."""
        return self.expr(one.of)

    def visit_coordinate(self, one: Coordinate) -> Expr:
        """An index as a number of what carries its type."""
        return Coordinate(self.type(one.dtype), self.index(one.index))

    def visit_apply(self, one: Apply) -> Expr:
        """A scalar op of rewritten operands."""
        return Apply(self.type(one.dtype), one.op, *map(self.expr, one.args))

    def visit_read(self, one: Read) -> Expr:
        """Elements of an argument as they are in memory, or of an array."""
        base = None if one.base is None else self.index(one.base)
        of = self.memory if one.memory in self.arguments else self.type
        return Read(of(one.dtype), one.memory, self.index(one.index), one.wide, base)

    def visit_cell(self, one: Cell) -> Expr:
        """An element of an array."""
        return Cell(self.type(one.dtype), one.array, self.index(one.index))


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
        """Remember it, a variable also where it is declared."""
        self.expressions[expr] = None
        return super().expr(expr)


class Refused(Rewriter):
    """A pass that has nothing to put in place: kernels that hold what it looks for are refused."""

    because: ClassVar[str]
    """Why, with ``{}`` where the first of what was found stands."""

    @classmethod
    def without(cls, body: Body) -> Body:
        """The kernel as it is; raises ``UnsupportedError``."""
        if places := cls.remaining(body):
            raise UnsupportedError(cls.because.format(places[0]))
        return body


def _typed(body: Body) -> Iterator[tuple[DType, str]]:
    """Every element type in a kernel, and where: of arguments, of statements, of expressions."""
    for argument in body.arguments:
        yield argument.dtype, f"argument {argument.name}"
    seen = Seen(body)
    for one in (*seen.expressions, *seen.statements):
        dtype = getattr(one, "dtype", None)
        if dtype is not None:
            yield dtype, f"a {type(one).__name__}"


def found(body: Body, *dtypes: DType) -> list[str]:
    """Where any of these types still stand."""
    return sorted({f"{dtype} in {where}" for dtype, where in _typed(body) if dtype in dtypes})
