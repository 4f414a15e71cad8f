"""Weights of 4 or 8 bits inside a kernel: how a word becomes numbers, and where zero goes.

A value n is put into the fraction of a float of fixed exponent, which makes it ``unit + n`` without
a conversion. What that adds to a product is a multiple of the sum of the activations of a group,
so the group's accumulator starts at its negative: the zero point costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptir.codegen.elementwise import cast
from ptir.codegen.expr import Apply, Expr, Load, constant
from ptir.codegen.graph import Builder, Graph, splat
from ptir.codegen.index import Index
from ptir.codegen.panels import UNPACK, Panels, panels_of
from ptir.ir.program import Instruction
from ptir.types import F32, U32

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

    words: int
    panels: Panels
    scale: int
    bias: int
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

    def scaled(self, builder: Builder, output: Index, group: Index) -> Expr:
        """The scale of a group."""
        return self._by_group(builder, self.scale, output, group)

    def offset(self, builder: Builder, output: Index, group: Index) -> Expr:
        """The bias of a group."""
        return self._by_group(builder, self.bias, output, group)

    def _by_group(self, builder: Builder, value: int, output: Index, group: Index) -> Expr:
        at = (output, group) if self.panels.layout == "oi" else (group, output)
        return cast(F32, builder.at(value, at))


def quantized_weight(graph: Graph, made: Instruction | None, contract: int) -> Quantized | None:
    """The packed weight that a ``dequantize`` stands for, or None."""
    if made is None or made.op != "dequantize" or made.types[0].dtype != F32:
        return None
    words, scale, bias = made.operands
    unpack = graph.instruction(words)
    if unpack is None or unpack.op != "composite" or unpack.name != UNPACK:
        return None
    bits, group = made.attributes["bits"], made.attributes["group"]
    panels = panels_of(graph.type(unpack.operands[0]), unpack.attributes)
    whole = bits in UNIT and group * bits % 32 == 0
    same = made.attributes["axis"] == contract == (1 if panels.layout == "oi" else 0)
    if not whole or not same or panels.per != 1:
        return None
    zero = _zero(graph, scale, bias)
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
