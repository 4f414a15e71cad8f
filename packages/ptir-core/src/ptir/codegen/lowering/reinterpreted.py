"""No casts of pointers: a memory has elements of one type, and others are made of their bits.

What is read or written as more than one type is declared as u32. An address that was given in two
parts is one index.
"""

from __future__ import annotations

from collections import defaultdict

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import Cell, Expr
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.lowering.algebra import bits
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.types import U32, DType


class Reinterpreted(Rewriter):
    """Gives each memory one type."""

    def __init__(self, body: Body) -> None:
        super().__init__(body)
        self.held = {name: _one(dtypes) for name, dtypes in used(body).items()}

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Memories of several types, and addresses in two parts."""
        several = (
            f"{name} is read as {len(dtypes)} types"
            for name, dtypes in used(body).items()
            if len(dtypes) > 1
        )
        reads = (x for x in Seen(body).expressions if isinstance(x, Read) and x.base is not None)
        return sorted({*several, *(f"an address into {x.memory}" for x in reads)})

    def argument(self, one: Argument) -> Argument:
        """A buffer of what it is read as."""
        return Argument(one.name, self.held.get(one.name, one.dtype), one.written)

    def visit_array(self, one: nodes.Array) -> None:
        """An array of what it is read as."""
        self.emit(one._replace(dtype=self.held.get(one.name, one.dtype)))

    def visit_read(self, one: Read) -> Expr:
        """An element, or what its bits are."""
        return bits(one.dtype, Read(self.held[one.memory], one.memory, self.index(one.place)))

    def visit_cell(self, one: Cell) -> Expr:
        """An element of an array, or what its bits are."""
        return bits(one.dtype, Cell(self.held[one.array], one.array, self.index(one.index)))

    def visit_store(self, one: nodes.Store) -> None:
        """The element, or its bits."""
        held = self.held[one.memory]
        at, value = self.index(one.at), bits(held, self.expr(one.value))
        self.emit(nodes.Store(held, one.memory, at, value))

    def visit_loadwords(self, one: nodes.LoadWords) -> None:
        """Words of what the memory is."""
        self.emit(one._replace(dtype=self.held[one.memory], at=self.index(one.at)))

    def visit_storewords(self, one: nodes.StoreWords) -> None:
        """Words of what the memory is."""
        words = tuple(map(self.expr, one.words))
        self.emit(nodes.StoreWords(self.held[one.memory], one.memory, self.index(one.at), words))


def _one(dtypes: set[DType]) -> DType:
    return next(iter(dtypes)) if len(dtypes) == 1 else U32


def used(body: Body) -> dict[str, set[DType]]:
    """The types of each memory: as it is declared, and as it is read and written."""
    found: dict[str, set[DType]] = defaultdict(set)
    for argument in body.arguments:
        found[argument.name].add(argument.dtype)
    seen = Seen(body)
    for one in seen.statements:
        if isinstance(one, nodes.Array):
            found[one.name].add(one.dtype)
        elif isinstance(one, nodes.Store):
            found[one.memory].add(one.dtype)
        elif isinstance(one, nodes.LoadWords | nodes.StoreWords | nodes.StorePacked):
            found[one.memory].add(U32)
    for expr in seen.expressions:
        if isinstance(expr, Read):
            found[expr.memory].add(expr.dtype)
        elif isinstance(expr, Cell):
            found[expr.array].add(expr.dtype)
    return found
