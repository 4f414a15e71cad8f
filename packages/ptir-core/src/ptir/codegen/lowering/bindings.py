"""Few buffers: those that are too many lie in one, each from a place that a table gives.

Which buffers a device has bound is known when it runs: their places, counted in words of u32, come
in a buffer of their own (``TABLE``), in the order in which the arguments stood. Buffers that are
only read are joined before those that are written, so that less is written to memory that is read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import Expr
from ptir.codegen.expressions.index import MOST, Index, dynamic
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.lowering.algebra import bits
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.errors import UnsupportedError
from ptir.types import I32, U32

JOINED: Final = "joined"
"""The buffer of several."""
TABLE: Final = "places"
"""Where each of them begins in it, an i32 each."""


class Binding(NamedTuple):
    """A buffer that a kernel takes after lowering, and the arguments that lie in it."""

    argument: Argument
    holds: tuple[str, ...]
    """Their names; of ``TABLE`` none."""


class Bindings(Rewriter):
    """Reads and writes of joined arguments go to the one buffer."""

    def __init__(self, body: Body, joined: tuple[str, ...]) -> None:
        super().__init__(body)
        self._number = {name: number for number, name in enumerate(joined)}

    def moved(self, memory: str, at: Index) -> Index:
        """A rewritten place in the buffer of several."""
        begin = Read(I32, TABLE, Index({}, self._number[memory]))
        place = self.index(at)
        return dynamic(begin, 0, MOST - place.high) + place

    def visit_read(self, one: Read) -> Expr:
        """A word of the buffer of several."""
        if one.memory not in self._number:
            return super().visit_read(one)
        return bits(one.dtype, Read(U32, JOINED, self.moved(one.memory, one.place)))

    def visit_store(self, one: nodes.Store) -> None:
        """To the buffer of several."""
        if one.memory in self._number:
            value = bits(U32, self.expr(one.value))
            self.emit(nodes.Store(U32, JOINED, self.moved(one.memory, one.at), value))
        else:
            super().visit_store(one)

    def visit_storepacked(self, one: nodes.StorePacked) -> None:
        """To the buffer of several."""
        if one.memory in self._number:
            at = self.moved(one.memory, one.at)
            self.emit(nodes.StorePacked(JOINED, at, self.expr(one.mask), self.expr(one.bits)))
        else:
            self.anew(one)


def joined(body: Body, most: int) -> tuple[str, ...]:
    """The arguments that have to lie in one buffer so that there are ``most``; none if few.

    Raises ``UnsupportedError`` where no choice leaves so few.
    """
    if not most or len(body.arguments) <= most:
        return ()
    seen = Seen(body).statements
    at_once = {s.memory for s in seen if isinstance(s, nodes.LoadWords | nodes.StoreWords)}
    free = [a for a in body.arguments if a.name not in at_once]
    wanted = len(body.arguments) - most + 2  # what is joined becomes two: a buffer and a table
    if len(free) < wanted or most < 2:
        raise UnsupportedError(
            f"the kernel takes {len(body.arguments)} buffers and the language has {most}, of which"
            f" {len(at_once)} are read 16 bytes at a time and cannot share one; compile for a"
            " device that allows more"
        )
    free.sort(key=lambda argument: argument.written)
    chosen = {argument.name for argument in free[:wanted]}
    return tuple(a.name for a in body.arguments if a.name in chosen)


def without(body: Body, most: int) -> Body:
    """At most ``most`` buffers; 0: any number."""
    names = joined(body, most)
    if not names:
        return body
    made = Bindings(body, names).rewritten()
    kept = [a for a in made.arguments if a.name not in names]
    written = any(a.written for a in body.arguments if a.name in names)
    more = Argument(JOINED, U32, written), Argument(TABLE, I32, False)
    return made._replace(arguments=(*kept, *more))


def layout(body: Body, names: tuple[str, ...]) -> tuple[Binding, ...]:
    """What each buffer of a lowered kernel holds; ``names`` are the joined arguments."""
    holds = {JOINED: names, TABLE: ()}
    return tuple(Binding(a, holds.get(a.name, (a.name,))) for a in body.arguments)


def remaining(body: Body, most: int) -> list[str]:
    """How many buffers there are, if too many."""
    count = len(body.arguments)
    return [f"{count} buffers, of which {most} are allowed"] if most and count > most else []
