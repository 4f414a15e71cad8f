"""Weights of few bits inside a kernel: how words become numbers, and where zero goes.

A value n is put into the fraction of a float of fixed exponent, which makes it ``unit + n`` without
a conversion. What that adds to a product is a multiple of the sum of the activations of a group,
so the group's accumulator starts at its negative: the zero point costs nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from ptir.codegen.expressions.bits import BIAS, FRACTION
from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import (
    Apply,
    Const,
    Coordinate,
    Expr,
    Load,
    as_index,
    constant,
    walk,
)
from ptir.codegen.expressions.index import ZERO, Index, axis
from ptir.codegen.fusion.graph import Builder, Graph, splat
from ptir.codegen.fusion.renumber import Value
from ptir.codegen.weights.computed_words import ComputedWords, computed_words
from ptir.codegen.weights.panel_views import panels_of_slices
from ptir.codegen.weights.panels import LANES, Panels
from ptir.ir.program import Instruction
from ptir.types import F32, I32, U32
from ptir.weights import WeightFormat, affine
from ptir.weights.record import PANELS
from ptir.weights.words import BYTE, ONES, WORD, WordLayout, greatest, layout, repeated

TABLE: Final = 16
"""Bytes of a table that ``table_bytes`` takes."""


class Chunk(NamedTuple):
    """What holds neighbouring values: the word of their low bits, and that of their high bits.

    The high bits of the first value of each byte begin at bit ``shift`` of the byte.
    """

    low: Expr | None
    high: Expr | None = None
    shift: int = 0

    def words(self) -> list[Expr]:
        """The words alone: high bits moved down to where bytes begin."""
        high = self.high
        if high is not None and self.shift:
            high = Apply(U32, "shift_right", high, constant(U32, self.shift))
        return [word for word in (self.low, high) if word is not None]


@dataclass(frozen=True)
class Quantized:
    """A dequantized weight [outputs, inputs]: packed words, and scale and bias by group."""

    words: Value
    panels: Panels
    scale: Value
    bias: Value
    format: WeightFormat
    table: tuple[int, ...] | None = None
    """What values are places in, where they are not numbers themselves."""
    computed: ComputedWords | None = None
    """What the words are computed from, where ``words`` are codes of several values."""

    @property
    def bits(self) -> int:
        """Bits of a value."""
        return self.format.bits

    @property
    def group(self) -> int:
        """Inputs that share a scale and a bias."""
        return self.format.group

    @property
    def zero(self) -> float | None:
        """The bias over the scale where that is one number, else None."""
        zero = self.format.zero
        return None if zero is None else -zero

    @property
    def unit(self) -> float:
        """The float whose fraction takes a number: the power of two above all numbers."""
        return float(1 << self._number_bits)

    @property
    def largest(self) -> int:
        """The largest number."""
        if self.computed is not None:
            return self.computed.largest
        return greatest(self.bits) if self.table is None else max(self.table)

    @property
    def _number_bits(self) -> int:
        return self.largest.bit_length()

    @property
    def layout(self) -> WordLayout:
        """Where the bits of values lie."""
        return layout(self.bits)

    @property
    def per(self) -> int:
        """Values in a chunk."""
        return self.layout.chunk

    @property
    def parts(self) -> int:
        """Words of bytes that a chunk becomes."""
        return self.layout.parts

    @property
    def inputs(self) -> int:
        """Values along a row."""
        return self.panels.inputs * WORD // self.bits

    def chunk(self, output: Index, number: Index, builder: Builder | None = None) -> Chunk:
        """A chunk of an output's row; ``builder`` is asked for words that are computed."""
        how = self.layout
        if not how.high:
            return Chunk(self._word(builder, output, number))
        place, first = number % how.chunks, number // how.chunks * how.words
        low = self._word(builder, output, first + place) if how.low else None
        high = self._word(builder, output, first + how.low_words)
        if place.is_constant:
            return Chunk(low, high, place.constant * how.above)
        amount = Apply(U32, "convert", Coordinate(I32, place * how.above))
        return Chunk(low, Apply(U32, "shift_right", high, amount))

    def chunk_of(self, words: Sequence[Expr]) -> Chunk:
        """The chunk whose ``Chunk.words`` these are."""
        low, high = [*words, None][:2] if self.layout.low else (None, words[0])
        return Chunk(low, high)

    def _word(self, builder: Builder | None, output: Index, word: Index) -> Expr:
        """A word of an output's row."""
        if self.computed is not None:
            assert builder is not None
            return self.computed.word(builder, output, word)
        return Load(U32, self.words, self.panels.word(output, word))

    @property
    def is_spread(self) -> bool:
        """Whether more than a mask makes words of bytes."""
        return self.layout.high > 0 or self.table is not None or self.computed is not None

    def biased(self, chunk: Chunk, place: int) -> Expr:
        """The number at a place of a chunk, plus ``unit``."""
        bits = self._number_bits
        unit = constant(U32, (BIAS + bits) << FRACTION)
        found: Expr | None = None
        for word, begin, first, count in self._fields(chunk, place):
            to = FRACTION - bits + first
            one = Apply(U32, "and", _moved(word, to - begin), constant(U32, greatest(count) << to))
            found = one if found is None else Apply(U32, "or", found, one)
        assert found is not None
        return Apply(F32, "bits", Apply(U32, "or", found, unit))

    def _fields(self, chunk: Chunk, place: int) -> Iterator[tuple[Expr, int, int, int]]:
        """Where a number's bits are: a word, their begin, the first of the number, their count."""
        how, (byte, part) = self.layout, divmod(place, self.parts)
        if self.table is not None:
            found = from_table(self._byte(chunk, part), self.table)
            yield found, byte * BYTE, 0, self._number_bits
            return
        if chunk.low is not None:
            yield chunk.low, place * how.low, 0, min(how.low, self._number_bits)
        if chunk.high is not None:
            begin = byte * BYTE + chunk.shift + part * how.high
            yield chunk.high, begin, how.low, how.high

    def dequantized(
        self, builder: Builder, output: Index, group: Index, number: Index
    ) -> list[Expr]:
        """The numbers in a chunk of a group."""
        step = self.scaled(builder, output, group)
        raised = Apply(F32, "mul", step, constant(F32, -self.unit))
        start = Apply(F32, "add", raised, self.offset(builder, output, group))
        held = self.chunk(output, number, builder)
        values = (self.biased(held, place) for place in range(self.per))
        return [Apply(F32, "fma", value, step, start) for value in values]

    def bytes_of(self, chunk: Chunk) -> tuple[Expr, ...]:
        """A chunk as words of bytes: the first numbers of each byte, then those behind these.

        For kernels that have ``dot_bytes``, and with it ``table_bytes``.
        """
        found = (self._byte(chunk, n) for n in range(self.parts))
        if self.table is None:
            return tuple(found)
        entries = bytes(self.table * (TABLE // len(self.table)))
        words = [constant(U32, word) for (word,) in struct.iter_unpack("<I", entries)]
        return tuple(Apply(U32, "table_bytes", one, *words) for one in found)

    def _byte(self, chunk: Chunk, part: int) -> Expr:
        """The word of a chunk's values at one place of each byte."""
        how = self.layout
        found: Expr | None = None
        if chunk.low is not None:
            found = _moved(chunk.low, -part * how.low)
            if self.parts > 1:
                found = Apply(U32, "and", found, constant(U32, repeated(how.low, BYTE)))
        if chunk.high is not None:
            high = _moved(chunk.high, how.low - chunk.shift - part * how.high)
            high = Apply(U32, "and", high, constant(U32, repeated(how.high, BYTE) << how.low))
            found = high if found is None else Apply(U32, "or", found, high)
        assert found is not None
        return found

    def order_of_bytes(self, count: int) -> tuple[int, ...]:
        """The inputs whose values are in the bytes of ``count`` values, byte by byte."""
        each = range(self.per // self.parts)
        return tuple(
            first + n + self.parts * place
            for first in range(0, count, self.per)
            for n in range(self.parts)
            for place in each
        )

    def in_order(self, chunk: Chunk) -> tuple[Expr, ...]:
        """A chunk as words of bytes in the order of its inputs."""
        word = chunk.low
        if word is not None and self.bits == 4 and self.table is None:
            return _spread(word), _spread(Apply(U32, "shift_right", word, constant(U32, 16)))
        order = self.order_of_bytes(self.per)
        places = sorted(range(self.per), key=order.__getitem__)
        return in_places(self.bytes_of(chunk), places)

    @property
    def whole_zero(self) -> int | None:
        """The bias over the scale where it is a small whole number: sums of integers take it."""
        zero = self.zero
        return int(zero) if zero is not None and zero == int(zero) and abs(zero) < 256 else None

    def start(self, total: Expr) -> Expr:
        """Where a group's integer sum starts: at what its bias adds, where that is whole."""
        return Apply(I32, "mul", total, constant(I32, self.whole_zero or 0))

    def scaled(self, builder: Builder, output: Index, group: Index) -> Expr:
        """The scale of a group."""
        return self._by_group(builder, self.scale, output, group)

    def offset(self, builder: Builder, output: Index, group: Index) -> Expr:
        """The bias of a group."""
        return self._by_group(builder, self.bias, output, group)

    def _by_group(self, builder: Builder, value: int, output: Index, group: Index) -> Expr:
        if panels_of_slices(builder.graph, value) is None:
            output = self._inside(output)
        at = (output, group) if self.panels.layout == "oi" else (group, output)
        return cast(F32, builder.at(value, at))

    def _inside(self, output: Index) -> Index:
        """An output, or the last one for those with which panels are filled up."""
        last = self.panels.outputs - 1
        if output.high <= last:
            return output
        nearest = Apply(I32, "min", Coordinate(I32, output), constant(I32, last))
        return as_index(nearest, 0, last)


GroupFloat: TypeAlias = Callable[[Builder, Index, Index], Expr]
"""The scale or the bias of an output and a group: ``Quantized.scaled`` or ``Quantized.offset``."""


def is_product(float_of: GroupFloat, builder: Builder) -> bool:
    """Whether the float of a group is computed from several that are stored."""
    found = float_of(builder, axis("lane", LANES), ZERO)
    return any(isinstance(one, Apply) and one.op == "mul" for one in walk(found))


def from_table(word: Expr, table: Sequence[int]) -> Expr:
    """The bytes of a table at the places that a word's bytes are, by masks: halves by each bit."""
    found: list[Expr] = [constant(U32, one * ONES) for one in table]
    bit = 0
    while len(found) > 1:
        one = Apply(U32, "and", _moved(word, -bit), constant(U32, ONES))
        mask = Apply(U32, "mul", one, constant(U32, greatest(BYTE)))
        found = [
            _chosen(mask, low, high) for low, high in zip(found[::2], found[1::2], strict=True)
        ]
        bit += 1
    return found[0]


def _chosen(mask: Expr, low: Expr, high: Expr) -> Expr:
    """The bits of ``high`` where the mask has ones, elsewhere those of ``low``."""
    if isinstance(low, Const) and isinstance(high, Const):
        differing: Expr = constant(U32, int(low.value) ^ int(high.value))
    else:
        differing = Apply(U32, "xor", low, high)
    return Apply(U32, "xor", low, Apply(U32, "and", differing, mask))


def _moved(word: Expr, by: int) -> Expr:
    """A word shifted to the left, to the right where ``by`` is negative."""
    op = "shift_left" if by > 0 else "shift_right"
    return Apply(U32, op, word, constant(U32, abs(by))) if by else word


def _spread(word: Expr) -> Expr:
    """The four lowest 4-bit values, a byte each: halves are moved apart, and halves of these."""
    word = Apply(U32, "and", word, constant(U32, repeated(16, WORD)))
    for bits in (8, 4):
        word = Apply(U32, "or", word, Apply(U32, "shift_left", word, constant(U32, bits)))
        word = Apply(U32, "and", word, constant(U32, repeated(bits, 2 * bits)))
    return word


def in_places(words: Sequence[Expr], places: Sequence[int]) -> tuple[Expr, ...]:
    """Words of bytes whose bytes are those of ``words`` at ``places``."""
    found: list[Expr] = []
    for first in range(0, len(places), WORD // BYTE):
        whole: Expr | None = None
        for to, place in enumerate(places[first : first + WORD // BYTE]):
            word, byte = divmod(place, WORD // BYTE)
            moved = _moved(words[word], BYTE * (to - byte))
            one = Apply(U32, "and", moved, constant(U32, greatest(BYTE) << BYTE * to))
            whole = one if whole is None else Apply(U32, "or", whole, one)
        assert whole is not None
        found.append(whole)
    return tuple(found)


def deinterleaved(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Two words of bytes as ``bytes_of`` a word orders them: even places, then odd ones."""
    return _even(a, b), _even(_down(a), _down(b))


def _down(word: Expr) -> Expr:
    return Apply(U32, "shift_right", word, constant(U32, 8))


def _even(a: Expr, b: Expr) -> Expr:
    """The bytes at even places of ``a``, then those of ``b``."""

    def halved(word: Expr) -> Expr:
        low = Apply(U32, "and", word, constant(U32, repeated(BYTE, 2 * BYTE)))
        both = Apply(U32, "or", low, Apply(U32, "shift_right", low, constant(U32, 8)))
        return Apply(U32, "and", both, constant(U32, greatest(2 * BYTE)))

    return Apply(U32, "or", halved(a), Apply(U32, "shift_left", halved(b), constant(U32, 16)))


def quantized_weight(graph: Graph, made: Instruction | None, contract: int) -> Quantized | None:
    """The packed weight that a ``dequantize`` stands for, or None."""
    if made is None or made.op != "dequantize" or made.types[0].dtype != F32:
        return None
    found = panels_of_words(graph, made.operands[0])
    if found is None:
        return None
    bits, group = made.attributes["bits"], made.attributes["group"]
    same = made.attributes["axis"] == contract == (1 if found[1].layout == "oi" else 0)
    weight = _of_words(graph, found, made.operands, bits, group) if same else None
    return weight and replace(weight, table=made.attributes["table"])


def quantized_experts(graph: Graph, product: Instruction) -> Quantized | None:
    """The packed weights of experts that a product with the chosen ones reads, or None."""
    found = panels_of_words(graph, product.operands[1])
    if found is None or found[1].runs or found[1].layout != "oi":
        return None
    bits, group = product.attributes["bits"], product.attributes["group"]
    weight = _of_words(graph, found, product.operands[1:4], bits, group)
    table: Any = product.attributes.get("table")
    return weight and replace(weight, table=table)


def quantized_operands(graph: Graph, product: Instruction) -> Quantized | None:
    """The packed weight of a product of bytes, or None."""
    found = panels_of_words(graph, product.operands[3])
    if found is None or found[1].stride or found[1].runs:
        return None
    bits, group = product.attributes["bits"], product.attributes["group"]
    weight = _of_words(graph, found, product.operands[3:6], bits, group)
    table: Any = product.attributes.get("table")
    return weight and replace(weight, table=table)


def panels_of_words(graph: Graph, value: int) -> tuple[int, Panels] | None:
    """The words of a weight and their panels: unpacked ones, or what is computed of such."""
    found = panels_of_slices(graph, value)
    if found is not None:
        return found
    computed = computed_words(graph, value)
    return None if computed is None else (value, computed.panels)


def _of_words(
    graph: Graph, found: tuple[int, Panels], operands: Sequence[int], bits: int, group: int
) -> Quantized | None:
    """A weight of unpacked words, scales and biases, where its words can be read whole."""
    words, panels = found
    _, scale, bias = operands
    computed, unpack = computed_words(graph, words), graph.instruction(words)
    if group % layout(bits).chunk or not _is_whole(graph, panels, scale, bits, group):
        return None
    if panels.per != 1 or unpack is None:
        return None
    packed = unpack.operands[0] if computed is None else computed.packed[0]
    zero = _zero(graph, scale, bias)
    if panels.runs:  # scales lie like words, biases do not
        scales = panels_of_slices(graph, scale)
        if scales is None or scales[1].runs != panels.runs or zero is None:
            return None
        scale = scales[0]
    format = _format(bits, group, zero)
    return Quantized(packed, panels, scale, bias, format, computed=computed)


def _is_whole(graph: Graph, panels: Panels, scale: int, bits: int, group: int) -> bool:
    """Whether the words along the inputs are full."""
    groups = graph.type(scale).shape[1 if panels.layout == "oi" else 0]
    return groups * group * bits == panels.inputs * WORD


@cache
def _format(bits: int, group: int, zero: float | None) -> WeightFormat:
    """Words, scales and biases of a program: what ``dequantize`` says they are."""
    name = f"{bits} bits by {group}"
    if zero is None:
        return affine(name, bits, group, packed=PANELS)
    return affine(name, bits, group, bias=None, zero=-zero, packed=PANELS)


def _zero(graph: Graph, scale: int, bias: int) -> float | None:
    """The number that the scale is multiplied with to give the bias, where it is one."""
    made = graph.instruction(bias)
    if made is None or made.op != "mul":
        return None
    for one, other in (made.operands, made.operands[::-1]):
        factor = graph.instruction(graph.behind_views(other))
        number = None if factor is None else splat(factor)
        if one == scale and number is not None:
            return float(number)
    return None
