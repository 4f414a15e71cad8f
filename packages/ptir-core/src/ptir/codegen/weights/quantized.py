"""Weights of 4 or 8 bits inside a kernel: how a word becomes numbers, and where zero goes.

A value n is put into the fraction of a float of fixed exponent, which makes it ``unit + n`` without
a conversion. What that adds to a product is a multiple of the sum of the activations of a group,
so the group's accumulator starts at its negative: the zero point costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from ptir.codegen.expressions.bits import BIAS, FRACTION
from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import Apply, Coordinate, Expr, Load, as_index, constant
from ptir.codegen.expressions.index import Index
from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.fusion.graph import Builder, Graph, splat
from ptir.codegen.fusion.renumber import Value
from ptir.codegen.weights.panel_views import panels_of_slices
from ptir.codegen.weights.panels import Panels, panels_of
from ptir.ir.program import Instruction
from ptir.types import F32, I32, U32
from ptir.weights import PACKED_BITS, WeightFormat, affine
from ptir.weights.record import PANELS
from ptir.weights.words import WORD, fills_words, greatest, per_word, repeated

BYTE: Final = 8


@dataclass(frozen=True)
class Quantized:
    """A dequantized weight [outputs, inputs]: packed words, and scale and bias by group."""

    words: Value
    panels: Panels
    scale: Value
    bias: Value
    format: WeightFormat

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
        """The float whose fraction takes a value: the power of two above all values."""
        return float(1 << self.bits)

    @property
    def per(self) -> int:
        """Values in a word."""
        return per_word(self.bits)

    @property
    def parts(self) -> int:
        """Words of bytes that a word of values becomes."""
        return BYTE // self.bits

    @property
    def inputs(self) -> int:
        """Values along a row."""
        return self.panels.inputs * self.per

    def word(self, output: Index, word: Index) -> Expr:
        """A word of an output's row."""
        return Load(U32, self.words, self.panels.word(output, word))

    def biased(self, word: Expr, place: int) -> Expr:
        """The value at a place of a word, plus ``unit``."""
        begin = self.format.codes.planes[0].place(place)
        lowest = FRACTION - self.bits  # where a value's lowest bit lies in the fraction
        shift = lowest - begin
        op = "shift_left" if shift >= 0 else "shift_right"
        moved = Apply(U32, op, word, constant(U32, abs(shift))) if shift else word
        mask = constant(U32, greatest(self.bits) << lowest)
        unit = constant(U32, (BIAS + self.bits) << FRACTION)
        return Apply(F32, "bits", Apply(U32, "or", Apply(U32, "and", moved, mask), unit))

    def dequantized(self, builder: Builder, output: Index, group: Index, word: Index) -> list[Expr]:
        """The numbers in a word of a group."""
        step = self.scaled(builder, output, group)
        raised = Apply(F32, "mul", step, constant(F32, -self.unit))
        start = Apply(F32, "add", raised, self.offset(builder, output, group))
        held = self.word(output, word)
        values = (self.biased(held, place) for place in range(self.per))
        return [Apply(F32, "fma", value, step, start) for value in values]

    def bytes_of(self, word: Expr) -> tuple[Expr, ...]:
        """A word as words of bytes; 4-bit values at even places first, then those at odd ones."""
        if self.parts == 1:
            return (word,)
        mask = constant(U32, repeated(self.bits, BYTE))
        moved = (
            Apply(U32, "shift_right", word, constant(U32, n * self.bits)) if n else word
            for n in range(self.parts)
        )
        return tuple(Apply(U32, "and", one, mask) for one in moved)

    def order_of_bytes(self, count: int) -> tuple[int, ...]:
        """The inputs whose values are in the bytes of ``count`` values, byte by byte."""
        each = range(self.per // self.parts)
        return tuple(
            first + n + self.parts * place
            for first in range(0, count, self.per)
            for n in range(self.parts)
            for place in each
        )

    def in_order(self, word: Expr) -> tuple[Expr, Expr]:
        """A word of 4-bit values as two words of bytes in the same order."""
        return _spread(word), _spread(Apply(U32, "shift_right", word, constant(U32, 16)))

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


def _spread(word: Expr) -> Expr:
    """The four lowest 4-bit values, a byte each: halves are moved apart, and halves of these."""
    word = Apply(U32, "and", word, constant(U32, repeated(16, WORD)))
    for bits in (8, 4):
        word = Apply(U32, "or", word, Apply(U32, "shift_left", word, constant(U32, bits)))
        word = Apply(U32, "and", word, constant(U32, repeated(bits, 2 * bits)))
    return word


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
    found = panels_of_slices(graph, made.operands[0])
    if found is None:
        return None
    bits, group = made.attributes["bits"], made.attributes["group"]
    same = made.attributes["axis"] == contract == (1 if found[1].layout == "oi" else 0)
    return _of_words(graph, found, made.operands, bits, group) if same else None


def quantized_operands(graph: Graph, product: Instruction) -> Quantized | None:
    """The packed weight of a product of bytes, or None."""
    words = graph.instruction(product.operands[3])
    if words is None or words.op != "composite" or words.name != UNPACK:
        return None
    panels = panels_of(graph.type(words.operands[0]), words.attributes)
    bits, group = product.attributes["bits"], product.attributes["group"]
    found = (product.operands[3], panels)
    return _of_words(graph, found, product.operands[3:6], bits, group)


def _of_words(
    graph: Graph, found: tuple[int, Panels], operands: Sequence[int], bits: int, group: int
) -> Quantized | None:
    """A weight of unpacked words, scales and biases, where its words can be read whole."""
    words, panels = found
    _, scale, bias = operands
    unpack = graph.instruction(words)
    if bits not in PACKED_BITS or not fills_words(group, bits):
        return None
    if panels.per != 1 or unpack is None:
        return None
    zero = _zero(graph, scale, bias)
    if panels.runs:  # scales lie like words, biases do not
        scales = panels_of_slices(graph, scale)
        if scales is None or scales[1].runs != panels.runs or zero is None:
            return None
        scale = scales[0]
    return Quantized(unpack.operands[0], panels, scale, bias, _format(bits, group, zero))


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
