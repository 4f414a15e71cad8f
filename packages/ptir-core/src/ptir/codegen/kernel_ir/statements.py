"""Statements of one kernel body under construction: blocks, loops, names, shared memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from ptir.backend.kernel import Language, WorkgroupPrimitives
from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Var, as_index
from ptir.codegen.expressions.index import MOST, Axis, Index, axis
from ptir.codegen.kernel_ir.nodes import (
    Array,
    Assign,
    Barrier,
    Break,
    Declare,
    For,
    If,
    Let,
    Scope,
    Statement,
    While,
)
from ptir.types import I32, U32, DType

Whole: TypeAlias = "int | Index | Expr"
"""A whole number as it is given to a loop: known, computed from loop variables, or a value."""

FIRST, LAST = Var(I32, "first"), Var(I32, "last")
"""The workgroup's part of what workgroups divide (``Statements.work_range``)."""


def whole(value: Whole) -> Expr:
    """A whole number as an expression."""
    if isinstance(value, int):
        return Const(I32, value)
    if isinstance(value, Index):
        return Coordinate(I32, value)
    return value


class Statements:
    """The statements so far, and the values that are named in each open block."""

    def __init__(self, dialect: Language) -> None:
        self.dialect = dialect
        self._open: list[list[Statement]] = [[]]
        self._scopes: list[dict[Hashable, Expr]] = [{}]
        self._names = 0
        self._head = 0
        self._arrays: dict[str, tuple[DType, int]] = {}
        self._constants: dict[tuple[int, ...], str] = {}

    def emit(self, statement: Statement) -> None:
        """Add one statement."""
        self._open[-1].append(statement)

    # --- variables ---

    def name(self, prefix: str = "t") -> str:
        """A fresh variable name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def let(self, value: Expr, name: str | None = None) -> Var:
        """A variable that holds ``value`` and does not change."""
        made = Var(value.dtype, name or self.name(), value.wide)
        self._open[-1].append(Let(made, value))
        return made

    def let_index(self, index: Index, size: int, name: str | None = None) -> Index:
        """A place below ``size`` as a variable, so that what is computed from it stays simple.

        One that 32 bits do not hold stays as it is.
        """
        if size > MOST:
            return index
        return axis(self.let(Coordinate(I32, index), name).name, size)

    def declare(self, value: Expr, *names: str) -> Var:
        """Variables that change and begin with ``value``; the first of them.

        Without a name it gets a fresh one.
        """
        named = names or (self.name("acc"),)
        made = tuple(Var(value.dtype, name, value.wide) for name in named)
        self.emit(Declare(made, (value,) * len(made)))
        return made[0]

    def declare_all(self, *begun: tuple[Var, Expr]) -> None:
        """Variables of one type that change, each with what it begins with."""
        variables, values = zip(*begun, strict=True)
        self.emit(Declare(variables, values))

    def assign(self, variable: Var, value: Expr) -> None:
        """The variable takes another value."""
        self._open[-1].append(Assign(variable, value))

    # --- blocks ---

    @contextmanager
    def _nested(self) -> Iterator[list[Statement]]:
        """The statements of a new block; values named inside are forgotten after it."""
        body: list[Statement] = []
        self._open.append(body)
        self._scopes.append({})
        yield body
        self._scopes.pop()
        self._open.pop()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Statements whose variables nobody else sees."""
        with self._nested() as body:
            yield
        self.emit(Scope(tuple(body)))

    @contextmanager
    def when(self, condition: Expr | None) -> Iterator[None]:
        """Statements where a condition holds; without one, always."""
        with self._nested() as body:
            yield
        self.emit(Scope(tuple(body)) if condition is None else If(condition, tuple(body)))

    @contextmanager
    def otherwise(self, condition: Expr | None = None) -> Iterator[None]:
        """Statements where what stands in front did not hold, and ``condition`` does."""
        with self._nested() as body:
            yield
        before = self._open[-1].pop()
        assert isinstance(before, If), f"there is nothing to be the other side of: {before}"
        rest = tuple(body) if condition is None else (If(condition, tuple(body)),)
        self.emit(_with_otherwise(before, rest))

    @contextmanager
    def loop(
        self, axis: Axis, first: Whole, end: Whole, step: int = 1, no_unroll: bool = False
    ) -> Iterator[None]:
        """A loop of ``axis`` from ``first`` up to ``end``.

        Where large bodies are nested, compilers that unroll what is ``rolled`` take minutes.
        """
        begin, until = whole(first), whole(end)
        with self._nested() as body:
            yield
        self.emit(For(axis.name, begin, until, step, tuple(body), no_unroll))

    @contextmanager
    def each(
        self,
        name: str,
        size: int,
        first: Whole = 0,
        end: Whole | None = None,
        step: int = 1,
        no_unroll: bool = False,
    ) -> Iterator[Index]:
        """A loop over places below ``size``, all where nothing else is said; gives the place."""
        with self.loop(Axis(name, size), first, size if end is None else end, step, no_unroll):
            yield axis(name, size)

    @contextmanager
    def while_true(
        self,
        variable: Var,
        condition: Expr,
        after: Expr,
        first: Expr | None = None,
        rolled: bool = False,
    ) -> Iterator[None]:
        """Any other loop (``nodes.While``)."""
        with self._nested() as body:
            yield
        self.emit(While(variable, first, condition, after, tuple(body), rolled))

    def leave(self) -> None:
        """Leave the innermost loop."""
        self.emit(Break())

    def work_range(self, pieces: int, workgroups: int) -> tuple[Var, Var]:
        """Name this workgroup's part of ``pieces`` among ``workgroups``: ``FIRST`` up to ``LAST``.

        What was written before is the kernel's *preamble*: it must not depend on the workgroup.
        """
        self._head = len(self._open[0])
        each, left = divmod(pieces, workgroups)
        # of a single workgroup too: its number is nobody's guess
        own = Index({Axis("item", workgroups): 1})
        for variable, number in ((FIRST, own), (LAST, own + 1)):
            more = Apply(I32, "min", Coordinate(I32, number), Const(I32, left))
            place = number * each + (as_index(more, 0, left) if left else 0)
            self.let(Coordinate(I32, place), variable.name)
        return FIRST, LAST

    def body(self) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
        """The preamble, which is the same for every workgroup, and the body that each does."""
        (all,) = self._open
        arrays = (Array(name, *what, shared=True) for name, what in self._arrays.items())
        constants = (Array(name, U32, len(n), numbers=n) for n, name in self._constants.items())
        return (*arrays, *constants, *all[: self._head]), tuple(all[self._head :])

    # --- what is named ---

    def known(self, key: Hashable) -> Expr | None:
        """What an open block remembers under ``key``."""
        for scope in reversed(self._scopes):
            if key in scope:
                return scope[key]
        return None

    def remember(self, key: Hashable, value: Expr) -> Expr:
        """Know ``value`` until the innermost block is closed; returns it."""
        self._scopes[-1][key] = value
        return value

    # --- arrays and workgroups ---

    @property
    def workgroup(self) -> WorkgroupPrimitives:
        """How the dialect spells workgroups."""
        assert self.dialect.workgroup is not None, f"{self.dialect.name} has no work-groups"
        return self.dialect.workgroup

    def array(self, name: str, size: int, dtype: DType) -> str:
        """Declare a private array of a 32-bit type; returns its name."""
        self.emit(Array(name, dtype, size))
        return name

    def constants(self, numbers: tuple[int, ...]) -> str:
        """The name of an array of u32 that never change."""
        if numbers not in self._constants:
            self._constants[numbers] = self.name("constants")
        return self._constants[numbers]

    @property
    def shared_bytes(self) -> int:
        """Bytes of all shared arrays, each of which begins at a multiple of 16."""
        sizes = (size * max(4, dtype.itemsize) for dtype, size in self._arrays.values())
        return sum(-(-size // 16) * 16 for size in sizes)

    def shared(self, dtype: DType, size: int) -> str:
        """Declare an array that the threads of a workgroup share; returns its name."""
        name = self.name("shared")
        self._arrays[name] = dtype, size
        return name

    def reduction_scratch(self, dtype: DType, size: int) -> str:
        """The shared array of a type for whatever is brought together, of ``size`` at least.

        Whoever uses it leaves with a barrier behind the last read.
        """
        name = f"room_{dtype.name}"
        self._arrays[name] = dtype, max(size, self._arrays.get(name, (dtype, 0))[1])
        return name

    def barrier(self) -> None:
        """All threads arrive, and see what the others wrote. Every thread must come here."""
        self.emit(Barrier())


def _with_otherwise(before: If, rest: tuple[Statement, ...]) -> If:
    """The last condition of an *else if* sequence, with another side."""
    if before.otherwise is None:
        return before._replace(otherwise=rest)
    (inner,) = before.otherwise
    assert isinstance(inner, If), f"this condition has another side already: {before}"
    return before._replace(otherwise=(_with_otherwise(inner, rest),))
