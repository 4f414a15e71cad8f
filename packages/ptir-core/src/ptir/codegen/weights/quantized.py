"""Weights of few bits inside a kernel: how words become numbers, and where zero goes.

A value n is put into the fraction of a float of fixed exponent, which makes it ``unit + n`` without
a conversion. What that adds to a product is a multiple of the sum of the activations of a group,
so the group's accumulator starts at its negative: the zero point costs nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from ptir.codegen.expressions.bits import BIAS, FRACTION, looked_up, moved
from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import (
    Apply,
    Coordinate,
    Expr,
    Load,
    as_index,
    constant,
    walk,
)
from ptir.codegen.expressions.index import ZERO, Index, axis
from ptir.codegen.fusion.graph import Builder, Graph
from ptir.codegen.fusion.renumber import Value
from ptir.codegen.weights.computed_words import ComputedWords
from ptir.codegen.weights.panels import LANES, Panels
from ptir.codegen.weights.small_floats import looked_up_float
from ptir.codegen.weights.values import small_float
from ptir.codegen.weights.word_bytes import from_table, in_places, spread_nibbles
from ptir.types import F32, I8, I32, U32, DType
from ptir.weights import WeightFormat
from ptir.weights.record import FLOATS
from ptir.weights.tables import SIGN, Table, has_floats
from ptir.weights.words import BYTE, ONES, TABLE_BITS, WORD, WordLayout, greatest, layout, repeated

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
    table: Table | None = None
    """What values stand for, where they are not numbers themselves."""
    computed: ComputedWords | None = None
    """What the words are computed from, where ``words`` are codes of several values."""
    permutes_words: bool = False
    """Whether a table of floats is looked up in registers (``Language.permutes_words``)."""
    permutes_bytes: bool = False
    """Whether floats of 8 bits are (``Language.permutes_bytes``)."""

    @property
    def bits(self) -> int:
        """Bits of a value."""
        return self.format.bits

    @property
    def group(self) -> int:
        """Inputs that share a scale and a bias."""
        return self.format.group

    @property
    def is_whole(self) -> bool:
        """Whether values stand for whole numbers: they can be multiplied as bytes."""
        return not has_floats(self.table)

    @property
    def below(self) -> int:
        """What is added to whole numbers, which may be negative, so that none is."""
        return SIGN if self.table == I8 else 0

    @property
    def zero(self) -> float | None:
        """What is added to the numbers of a group, as kernels have them: its bias over its scale.

        None where that is not the same for all groups.
        """
        zero = self.format.zero
        return None if zero is None else -zero - self.below

    @property
    def unit(self) -> float:
        """The float whose fraction takes a number: the power of two above all numbers.

        0 where numbers are floats themselves.
        """
        return float(1 << self._number_bits) if self.is_whole else 0.0

    @property
    def largest(self) -> int:
        """The largest number of those that are whole."""
        if self.computed is not None:
            return self.computed.largest
        return int(max(self.table)) if isinstance(self.table, tuple) else greatest(self.bits)

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
        if not self.is_whole:
            return self._float(chunk, place)
        bits = self._number_bits
        unit = constant(U32, (BIAS + bits) << FRACTION)
        found: Expr | None = None
        for word, begin, first, count in self._fields(chunk, place):
            to = FRACTION - bits + first
            one = Apply(U32, "and", moved(word, to - begin), constant(U32, greatest(count) << to))
            found = one if found is None else Apply(U32, "or", found, one)
        assert found is not None
        return Apply(F32, "bits", Apply(U32, "or", found, unit))

    def _fields(self, chunk: Chunk, place: int) -> Iterator[tuple[Expr, int, int, int]]:
        """Where a number's bits are: a word, their begin, the first of the number, their count."""
        how, (byte, part) = self.layout, divmod(place, self.parts)
        if self.table is not None:
            yield self._number(chunk, part), byte * BYTE, 0, self._number_bits
            return
        if chunk.low is not None:
            yield chunk.low, place * how.low, 0, min(how.low, self._number_bits)
        if chunk.high is not None:
            begin = byte * BYTE + chunk.shift + part * how.high
            yield chunk.high, begin, how.low, how.high

    def _float(self, chunk: Chunk, place: int) -> Expr:
        """The number at a place of a chunk, where numbers are floats."""
        byte, part = divmod(place, self.parts)
        codes = self._byte(chunk, part)
        if isinstance(self.table, DType):
            if self.permutes_bytes:
                return looked_up_float(self.table, codes, byte)
            code = moved(codes, -byte * BYTE) & greatest(BYTE)
            return small_float(FLOATS[self.table], code, BYTE)
        assert self.table is not None
        code = moved(codes, -byte * BYTE)
        if not self.permutes_words:
            return looked_up([constant(F32, entry) for entry in self.table], code)
        mask = constant(U32, greatest(self.bits))
        code = code if self.bits == TABLE_BITS else Apply(U32, "and", code, mask)
        entries = (self.table * TABLE)[:TABLE]
        words = [Apply(U32, "bits", constant(F32, entry)) for entry in entries]
        return Apply(F32, "bits", Apply(U32, "table_words", code, *words))

    def _number(self, chunk: Chunk, part: int) -> Expr:
        """The word of a chunk's whole numbers at one place of each byte, found by masks."""
        found = self._byte(chunk, part)
        if self.table == I8:
            return Apply(U32, "xor", found, constant(U32, SIGN * ONES))
        assert isinstance(self.table, tuple)
        return from_table(found, [int(entry) for entry in self.table])

    def dequantized(
        self, builder: Builder, output: Index, group: Index, number: Index
    ) -> list[Expr]:
        """The numbers in a chunk of a group."""
        step = self.scaled(builder, output, group)
        held = self.chunk(output, number, builder)
        values = [self.biased(held, place) for place in range(self.per)]
        if self.below or not self.is_whole or self.zero is None:
            # of the number itself, as the format says: a minimum beside what raising it adds is
            # rounded, and so is a product with a scale of f32
            zero = constant(F32, self.unit + self.below)
            numbers = [value - zero for value in values] if self.is_whole else values
            bias = self._by_group(builder, self.bias, output, group)
            return [number * step + bias for number in numbers]
        raised = Apply(F32, "mul", step, constant(F32, -self.unit))
        start = Apply(F32, "add", raised, self.offset(builder, output, group))
        return [Apply(F32, "fma", value, step, start) for value in values]

    def bytes_of(self, chunk: Chunk) -> tuple[Expr, ...]:
        """A chunk as words of bytes: the first numbers of each byte, then those behind these.

        For kernels that have ``dot_bytes``, and with it ``table_bytes``.
        """
        if not isinstance(self.table, tuple):
            of = self._byte if self.table is None else self._number
            return tuple(of(chunk, n) for n in range(self.parts))
        found = (self._byte(chunk, n) for n in range(self.parts))
        entries = bytes(int(one) for one in self.table * (TABLE // len(self.table)))
        words = [constant(U32, word) for (word,) in struct.iter_unpack("<I", entries)]
        return tuple(Apply(U32, "table_bytes", one, *words) for one in found)

    def _byte(self, chunk: Chunk, part: int) -> Expr:
        """The word of a chunk's values at one place of each byte."""
        how = self.layout
        found: Expr | None = None
        if chunk.low is not None:
            found = moved(chunk.low, -part * how.low)
            if self.parts > 1:
                found = Apply(U32, "and", found, constant(U32, repeated(how.low, BYTE)))
        if chunk.high is not None:
            high = moved(chunk.high, how.low - chunk.shift - part * how.high)
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
            return spread_nibbles(word), spread_nibbles(moved(word, -16))
        if self.parts == 1:
            return self.bytes_of(chunk)
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
        """What is added to a group beside its sums: its bias, as whole numbers are raised."""
        bias = self._by_group(builder, self.bias, output, group)
        if self.below and self.zero is None:
            return bias - self.scaled(builder, output, group) * float(self.below)
        return bias

    def _by_group(self, builder: Builder, value: int, output: Index, group: Index) -> Expr:
        found = self._float_at(builder, value, output, group)
        if output.high < self.panels.outputs or _is_in_memory(builder.graph, found):
            return found
        return self._float_at(builder, value, self._inside(output), group)

    def _float_at(self, builder: Builder, value: int, output: Index, group: Index) -> Expr:
        at = (output, group) if self.panels.layout == "oi" else (group, output)
        return cast(F32, builder.at(value, at))

    def _inside(self, output: Index) -> Index:
        """An output, or the last one for those with which panels are filled up."""
        last = self.panels.outputs - 1
        nearest = Apply(I32, "min", Coordinate(I32, output), constant(I32, last))
        return as_index(nearest, 0, last)


def _is_in_memory(graph: Graph, found: Expr) -> bool:
    """Whether all that is read lies in memory: panels are filled up to 16 outputs.

    Then an output behind the last one needs no other in its place, which no vector could load.
    """
    loads = (one for one in walk(found) if isinstance(one, Load))
    return all(
        one.index.low >= 0
        and (one.index.high + 1) * one.dtype.bits <= 8 * graph.type(one.source).nbytes
        for one in loads
    )


GroupFloat: TypeAlias = Callable[[Builder, Index, Index], Expr]
"""The scale or the bias of an output and a group: ``Quantized.scaled`` or ``Quantized.offset``."""


def is_product(float_of: GroupFloat, builder: Builder) -> bool:
    """Whether the float of a group is computed from several that are stored."""
    found = float_of(builder, axis("lane", LANES), ZERO)
    return any(isinstance(one, Apply) and one.op == "mul" for one in walk(found))
