"""Words of vector codebooks inside a kernel: codes and signs in panels, and their table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ptir.codegen.expressions.expr import Expr, Load
from ptir.codegen.expressions.index import Index
from ptir.codegen.expressions.movement import vector_word
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.fusion.renumber import Value
from ptir.codegen.weights.panel_views import panels_of_slices
from ptir.codegen.weights.panels import Panels
from ptir.types import U32
from ptir.weights.vectors import MIDDLE
from ptir.weights.words import BYTE, greatest, period

VECTORS: Final = "unpack_vectors"


@dataclass(frozen=True)
class PackedVectors:
    """Packed codes of some ``bits``, the ``table`` of a shape that they are of, perhaps signs."""

    unpacked: Value
    """The codes as the program knows them."""
    codes: Value
    panels: Panels
    bits: int
    table: Value
    shape: tuple[int, ...]
    largest: int
    """The largest byte that is looked up, its sign applied."""
    signs: Value = -1
    sign_panels: Panels | None = None

    @property
    def panels_of_bytes(self) -> Panels:
        """Panels of the words that are looked up, which lie nowhere."""
        count, words = period(self.bits)
        return replace(self.panels, inputs=self.panels.inputs // words * count * self.shape[1])

    @property
    def own(self) -> frozenset[int]:
        """What is read beside the codes."""
        return frozenset((self.table, *((self.signs,) if self.signs >= 0 else ())))

    def word(self, output: Index, place: Index) -> Expr:
        """The word at a place of an output's row."""
        return vector_word(
            place,
            self.bits,
            self.shape,
            lambda word: Load(U32, self.codes, self.panels.word(output, word)),
            lambda row, word: Load(U32, self.table, row * self.shape[1] + word),
            None if self.sign_panels is None else lambda word: self._sign(output, word),
        )

    def _sign(self, output: Index, word: Index) -> Expr:
        assert self.sign_panels is not None
        return Load(U32, self.signs, self.sign_panels.word(output, word))


def packed_vectors(graph: Graph, value: int) -> PackedVectors | None:
    """The packed codes that the words of a weight are looked up by, or None."""
    made = graph.instruction(value)
    if made is None or made.op != VECTORS:
        return None
    codes, table, signs = made.operands
    found = _packed(graph, codes)
    if found is None:
        return None
    axis, bits = made.attributes["axis"], made.attributes["bits"]
    if axis != (1 if found[1].layout == "oi" else 0):
        return None
    is_signed = graph.type(signs).shape[axis] > 0
    largest = _largest(graph, table, is_signed)
    bare = PackedVectors(codes, *found, bits, table, graph.type(table).shape, largest)
    if not is_signed:
        return bare
    marks = _packed(graph, signs)
    return marks and replace(bare, signs=marks[0], sign_panels=marks[1])


def _largest(graph: Graph, table: Value, is_signed: bool) -> int:
    """The largest byte of a table, of a constant one as it is, or its opposite about the middle."""
    made = graph.instruction(table)
    if made is None or made.op != "constant":
        return greatest(BYTE)
    data: bytes = made.attributes["value"].data
    if is_signed and min(data) > 0 and max(data) < 2 * MIDDLE:
        return max(max(data), 2 * MIDDLE - min(data))
    return greatest(BYTE) if is_signed else max(data)


def _packed(graph: Graph, value: int) -> tuple[Value, Panels] | None:
    """A packed parameter, whole, and its panels."""
    found = panels_of_slices(graph, value)
    unpack = None if found is None else graph.instruction(found[0])
    if found is None or unpack is None or found[1].stride or found[1].runs or found[1].per != 1:
        return None
    return unpack.operands[0], found[1]
