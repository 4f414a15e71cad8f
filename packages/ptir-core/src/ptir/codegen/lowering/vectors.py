"""No 16 bytes at once beside single elements: such loads and stores become those of four words.

A memory that is never read or written in another way stays one of 16 bytes.
"""

from __future__ import annotations

from ptir.codegen.expressions.expr import Cell, Expr, Var
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import Read, Word
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.types import U32

AT_ONCE = nodes.LoadWords | nodes.StoreWords


def vectors(body: Body) -> frozenset[str]:
    """The memories that are read and written 16 bytes at a time."""
    return frozenset(s.memory for s in Seen(body).statements if isinstance(s, AT_ONCE))


def elements(body: Body) -> frozenset[str]:
    """The memories that are read and written element by element."""
    seen = Seen(body)
    stores = nodes.Store | nodes.StorePacked
    found = {s.memory for s in seen.statements if isinstance(s, stores)}
    found |= {x.memory for x in seen.expressions if isinstance(x, Read)}
    return frozenset(found | {x.array for x in seen.expressions if isinstance(x, Cell)})


class Vectors(Rewriter):
    """Words one by one where a memory holds elements."""

    def __init__(self, body: Body) -> None:
        super().__init__(body)
        self._split = vectors(body) & elements(body)
        self._taken: set[str] = set()

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Memories that are used both by element and by 16 bytes."""
        both = vectors(body) & elements(body)
        return sorted(f"{name} is read by words and by 16 bytes" for name in both)

    def visit_loadwords(self, one: nodes.LoadWords) -> None:
        """A load of 16 bytes as four variables."""
        if one.memory not in self._split:
            self.anew(one)
            return
        self._taken.add(one.name)
        at = self.index(one.at)
        for number in range(4):
            self.emit(nodes.Let(_named(one.name, number), Read(U32, one.memory, at + number)))

    def visit_storewords(self, one: nodes.StoreWords) -> None:
        """A store of 16 bytes as four stores."""
        if one.memory not in self._split:
            super().visit_storewords(one)
            return
        at = self.index(one.at)
        for number, value in enumerate([self.let(self.expr(word)) for word in one.words]):
            self.emit(nodes.Store(U32, one.memory, at + number, value))

    def visit_word(self, one: Word) -> Expr:
        """The variable that holds the word."""
        return _named(one.of, one.number) if one.of in self._taken else one


def _named(name: str, number: int) -> Var:
    return Var(U32, f"{name}_{number}")
