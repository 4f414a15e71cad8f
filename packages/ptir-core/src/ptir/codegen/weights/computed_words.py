"""Words of bytes that kernels compute of packed codes, where they would load a word of a weight.

Such are the codes of vector codebooks, looked up in a table, and the digits of base 3 that lie in a
byte. What the program says of them is folded into each word: they are nowhere in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ptir.codegen.expressions.expr import Expr
from ptir.codegen.expressions.index import Index
from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.fusion.graph import Builder, Graph, is_map, splat
from ptir.codegen.fusion.renumber import Unordered, Value
from ptir.codegen.weights.panels import Panels, panels_of
from ptir.ir.program import Instruction
from ptir.types import U32
from ptir.weights.vectors import MIDDLE
from ptir.weights.words import BYTE, greatest

VECTORS: Final = "unpack_vectors"
COMPUTED: Final = frozenset(
    (
        *("cast", "mul", "add", "and", "or", "shift_left", "shift_right"),
        *("reshape", "broadcast_to", "slice", VECTORS),
    )
)
"""Ops by which a scale is made of codes, the whole numbers of groups, floats of super-blocks; and
words of bytes of the codes of several weights."""
SELECTED: Final = ("reshape", "slice")
"""Ops behind which a word is one of those in front."""


@dataclass(frozen=True)
class ComputedWords:
    """The words [outputs, words] of a weight as a value, and what they are computed from.

    ``packed`` are parameters in panels, ``beside`` constants that lie in memory. No byte of a word
    is above ``largest``.
    """

    value: Value
    panels: Panels
    packed: Unordered
    beside: Unordered
    largest: int

    @property
    def own(self) -> frozenset[int]:
        """What is read to compute them."""
        return frozenset((*self.packed, *self.beside))

    def word(self, builder: Builder, output: Index, place: Index) -> Expr:
        """The word at a place of an output's row."""
        at = (output, place) if self.panels.layout == "oi" else (place, output)
        return builder.at(self.value, at)


def computed_words(graph: Graph, value: int) -> ComputedWords | None:
    """What the words of a weight are computed from; None where they are packed, or otherwise."""
    made = graph.instruction(value)
    type = graph.type(value)
    if made is None or type.dtype != U32 or type.rank != 2 or made.op == "composite":
        return None
    packed: dict[int, Instruction] = {}
    beside: list[int] = []
    for leaf in _leaves(graph, value):
        of = graph.instruction(leaf)
        if of is None:
            return None
        if of.op == "constant":
            beside.append(leaf)
        else:
            packed[of.operands[0]] = of
    panels = {panels_of(graph.type(n), one.attributes) for n, one in packed.items()}
    layouts = {one.layout for one in panels}
    if len(layouts) != 1 or {(one.dtype, one.per) for one in panels} != {(U32, 1)}:
        return None
    (layout,) = layouts
    outputs, words = type.shape if layout == "oi" else type.shape[::-1]
    whole = Panels(U32, outputs, words, layout, 1)
    own = tuple(sorted(packed)), tuple(sorted(beside))
    return ComputedWords(value, whole, *own, _largest(graph, value))


def _leaves(graph: Graph, value: int) -> Iterator[int]:
    """The unpacked parameters and large constants behind a value, or one that is neither."""
    seen, pending = set[int](), [value]
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        made = graph.instruction(one)
        if made is not None and made.op == "composite" and made.name == UNPACK:
            yield one
        elif made is not None and made.op == "constant":
            if splat(made) is None and made.types[0].size:
                yield one
        elif made is not None and is_map(made):
            pending.extend(made.operands)
        else:
            yield -1


def _largest(graph: Graph, value: int) -> int:
    """The largest byte of words, as far as their last op says it."""
    made = graph.instruction(value)
    while made is not None and made.op in SELECTED:
        made = graph.instruction(made.operands[0])
    if made is not None and made.op == "and":
        masks = (graph.instruction(graph.behind_views(one)) for one in made.operands)
        known = [splat(one) for one in masks if one is not None]
        bytes_of = (int(one).to_bytes(4, "little") for one in known if one is not None)
        return min((max(one) for one in bytes_of), default=greatest(BYTE))
    if made is not None and made.op == VECTORS:
        _, table, signs = made.operands
        return _largest_entry(graph, table, graph.type(signs).size > 0)
    return greatest(BYTE)


def _largest_entry(graph: Graph, table: Value, is_signed: bool) -> int:
    """The largest byte of a constant table, or its opposite about the middle."""
    made = graph.instruction(table)
    if made is None or made.op != "constant":
        return greatest(BYTE)
    data: bytes = made.attributes["value"].data
    if is_signed and min(data) > 0 and max(data) < 2 * MIDDLE:
        return max(max(data), 2 * MIDDLE - min(data))
    return greatest(BYTE) if is_signed else max(data)
