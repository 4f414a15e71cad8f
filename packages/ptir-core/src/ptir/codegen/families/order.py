"""The order family: stable sorts of lines along an axis, by merging.

Serial schedule: an item owns whole lines. Indices are merged back and forth between the result and
scratch memory of the same size, two widths a round, so that they end up in the result.
"""

from __future__ import annotations

import math

from ptir.codegen.expr import Apply, Expr, Load, Var, as_index, compare
from ptir.codegen.graph import Graph
from ptir.codegen.index import ZERO, Axis, Index, axis, digits
from ptir.codegen.kernel import Family, Group, Kernel, Site, finished, scratch_value
from ptir.codegen.writer import Writer
from ptir.types import BOOL, I32


def match(graph: Graph, position: int) -> Group | None:
    """Every sort."""
    made = graph.block.instructions[position]
    if made.op != "sort":
        return None
    exits = graph.results[position]
    return Group("order", frozenset((position,)), made.operands, exits, exact=made.operands)


def write(group: Group, site: Site) -> Kernel:
    """A loop over lines."""
    return _Sort(group, site).kernel()


class _Sort:
    def __init__(self, group: Group, site: Site) -> None:
        (position,) = group.members
        self.group, self.site = group, site
        self.made = site.graph.block.instructions[position]
        shape = self.made.types[0].shape
        along = self.made.attributes["axis"] % len(shape)
        self.size = shape[along]
        self.inner = math.prod(shape[along + 1 :])
        self.lines = math.prod(shape) // self.size
        self.dtype = self.made.types[0].dtype
        self.values, self.indices = group.exits
        self.scratch = scratch_value(group, 0)
        self.writer: Writer = site.writer()
        self.builder = site.builder()
        self.base = ZERO

    def kernel(self) -> Kernel:
        """Every line: numbered, merged, and its elements put in order."""
        writer, rounds = self.writer, max(1, self.size.bit_length())
        items = self.site.items(self.lines, self.lines * self.size * rounds * 8)
        writer.share(self.lines, items)
        with writer.loop(Axis("line", self.lines), "first", "last"):
            line = axis("line", self.lines)
            self.base = (line // self.inner) * (self.size * self.inner) + line % self.inner
            with writer.loop(Axis("i", self.size), "0", str(self.size)):
                place = axis("i", self.size)
                self._put(self.indices, self._at(place), writer.index(place))
            with writer.block(f"for (int w = 1; w < {self.size}; w *= 4)"):
                self._merge(self.indices, self.scratch, "w")
                self._merge(self.scratch, self.indices, "w * 2")
            with writer.loop(Axis("i", self.size), "0", str(self.size)):
                here = self._at(axis("i", self.size))
                found = self._element(Load(I32, self.indices, here))
                writer.store(self.values, self.dtype, here, found)
        return finished(self.group, writer, items, (self.made.types[1],))

    def _at(self, place: Index) -> Index:
        """Where a place of the line is in a tensor of the operand's shape."""
        return self.base + place * self.inner

    def _named(self, name: str) -> Index:
        """A place of the line that a variable holds."""
        return as_index(Var(I32, name), 0, self.size - 1)

    def _element(self, place: Expr) -> Expr:
        """The operand's element at a place of the line known at run time."""
        flat = self._at(as_index(place, 0, self.size - 1))
        return self.builder.at(self.made.operands[0], digits(flat, self.made.types[0].shape))

    def _put(self, value: int, at: Index, text: str) -> None:
        writer = self.writer
        buffer = writer.buffer(value, I32, written=True)
        writer.line(writer.dialect.store(I32, 1, buffer, writer.index(at), text))

    def _merge(self, source: int, target: int, width: str) -> None:
        """Merge runs of ``width`` from one index array into the other."""
        writer, n = self.writer, self.size
        with writer.block(f"for (int low = 0; low < {n}; low += 2 * ({width}))"):
            writer.line(f"const int middle = min(low + ({width}), {n});")
            writer.line(f"const int high = min(low + 2 * ({width}), {n});")
            writer.line("int l = low, r = middle;")
            with writer.block("for (int o = low; o < high; ++o)"):
                writer.line("int right = l >= middle;")
                with writer.block("if (l < middle && r < high)"):
                    a, b = (
                        self._element(Load(I32, source, self._at(self._named(name))))
                        for name in ("r", "l")
                    )
                    writer.line(f"right = {writer.scalar(self._before(a, b))};")
                writer.line("const int from = right ? r : l;")
                moved = Load(I32, source, self._at(self._named("from")))
                self._put(target, self._at(self._named("o")), writer.scalar(moved))
                writer.line("if (right) ++r; else ++l;")

    def _before(self, a: Expr, b: Expr) -> Expr:
        """Whether ``a`` comes strictly before ``b``; NaN comes last in both directions."""
        ordered = compare("gt" if self.made.attributes["descending"] else "lt", a, b)
        if not self.dtype.is_float:
            return ordered
        number, not_one = compare("eq", a, a), compare("ne", b, b)
        return Apply(BOOL, "or", ordered, Apply(BOOL, "and", number, not_one))


FAMILY = Family("order", match, write)
