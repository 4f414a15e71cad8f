"""Weights of 4 or 8 bits inside a kernel: how a word becomes numbers, and where zero goes.

A value n is put into the fraction of a float of fixed exponent, which makes it ``unit + n`` without
a conversion. What that adds to a product is a multiple of the sum of the activations of a group,
so the group's accumulator starts at its negative: the zero point costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ptir.codegen.columns import panels_behind
from ptir.codegen.elementwise import cast
from ptir.codegen.expr import Apply, Coordinate, Expr, Load, as_index, constant
from ptir.codegen.graph import Builder, Graph, splat
from ptir.codegen.index import Index
from ptir.codegen.panels import UNPACK, Panels, panels_of
from ptir.codegen.renumber import Value
from ptir.ir.program import Instruction
from ptir.types import F32, I32, U32

EXPONENT: Final = {4: 0x41800000, 8: 0x43800000}
"""The bits of the floats 16 and 256."""
UNIT: Final = {4: 16.0, 8: 256.0}
SHIFT: Final = {4: 19, 8: 15}
"""Where the lowest bit of a value lies in the fraction of such a float."""


@dataclass(frozen=True)
class Quantized:
    """A dequantized weight [outputs, inputs]: packed words, and scale and bias by group.

    ``zero`` is the bias over the scale where that is one number, else None.
    """

    words: Value
    panels: Panels
    scale: Value
    bias: Value
    bits: int
    group: int
    zero: float | None

    @property
    def per(self) -> int:
        """Values in a word."""
        return 32 // self.bits

    @property
    def inputs(self) -> int:
        """Values along a row."""
        return self.panels.inputs * self.per

    def word(self, output: Index, word: Index) -> Expr:
        """A word of an output's row."""
        return Load(U32, self.words, self.panels.word(output, word))

    def raised(self, word: Expr, place: int) -> Expr:
        """The value at a place of a word, plus ``UNIT``."""
        shift = SHIFT[self.bits] - place * self.bits
        op = "shift_left" if shift >= 0 else "shift_right"
        moved = Apply(U32, op, word, constant(U32, abs(shift))) if shift else word
        mask = constant(U32, (2**self.bits - 1) << SHIFT[self.bits])
        bits = Apply(U32, "or", Apply(U32, "and", moved, mask), constant(U32, EXPONENT[self.bits]))
        return Apply(F32, "bits", bits)

    def bytes_of(self, word: Expr) -> tuple[Expr, ...]:
        """A word as words of bytes; 4-bit values at even places first, then those at odd ones."""
        if self.bits == 8:
            return (word,)
        mask = constant(U32, 0x0F0F0F0F)
        high = Apply(U32, "shift_right", word, constant(U32, 4))
        return Apply(U32, "and", word, mask), Apply(U32, "and", high, mask)

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
        if panels_behind(builder.graph, value) is None:
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
    """The four lowest 4-bit values, a byte each."""
    for shift, mask in ((None, 0xFFFF), (8, 0x00FF00FF), (4, 0x0F0F0F0F)):
        if shift is not None:
            word = Apply(U32, "or", word, Apply(U32, "shift_left", word, constant(U32, shift)))
        word = Apply(U32, "and", word, constant(U32, mask))
    return word


def parted(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Two words of bytes as ``bytes_of`` a word orders them: even places, then odd ones."""
    return _even(a, b), _even(_down(a), _down(b))


def _down(word: Expr) -> Expr:
    return Apply(U32, "shift_right", word, constant(U32, 8))


def _even(a: Expr, b: Expr) -> Expr:
    """The bytes at even places of ``a``, then those of ``b``."""

    def halved(word: Expr) -> Expr:
        low = Apply(U32, "and", word, constant(U32, 0x00FF00FF))
        both = Apply(U32, "or", low, Apply(U32, "shift_right", low, constant(U32, 8)))
        return Apply(U32, "and", both, constant(U32, 0xFFFF))

    return Apply(U32, "or", halved(a), Apply(U32, "shift_left", halved(b), constant(U32, 16)))


def quantized_weight(graph: Graph, made: Instruction | None, contract: int) -> Quantized | None:
    """The packed weight that a ``dequantize`` stands for, or None."""
    if made is None or made.op != "dequantize" or made.types[0].dtype != F32:
        return None
    found = panels_behind(graph, made.operands[0])
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
    if bits not in UNIT or group * bits % 32 or panels.per != 1 or unpack is None:
        return None
    zero = _zero(graph, scale, bias)
    if panels.runs:  # scales lie like words, biases do not
        scales = panels_behind(graph, scale)
        if scales is None or scales[1].runs != panels.runs or zero is None:
            return None
        scale = scales[0]
    return Quantized(unpack.operands[0], panels, scale, bias, bits, group, zero)


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
