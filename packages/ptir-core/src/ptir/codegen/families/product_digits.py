"""Few rows times weights of 4 or 8 bits by a processor's dot products of bytes, as exact as by f32.

Activations of a group become whole numbers of 24 bits, in units of a power of two that fits the
largest of them, and those become three signed digits of 8 bits. Words of weights times digits add
up in integers without any error; a group's three sums become one float at its end. An activation
is off by at most 2^-24 of the largest of its group, as if it had been rounded to f32 beside that.

The digits are made once per worker, in the kernel's head. A group with an infinity or a NaN gives
NaN.
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.expr import Apply, Cell, Const, Expr, Var, compare, constant, select
from ptir.codegen.families.product_parts import Product, fma
from ptir.codegen.families.product_streamed import Streamed
from ptir.codegen.index import Axis, Index, axis, number
from ptir.codegen.kernel import Site
from ptir.codegen.panels import LANES
from ptir.codegen.quantized import Quantized
from ptir.types import F32, I8, I32, U32

DIGITS: Final = 3
LARGEST: Final = 128
"""Most activations of a group, so that its sums fit 32 bits."""
CENTRE: Final = 0x808080
"""Added to a number, makes each of its three bytes a digit plus 128."""
MARGIN: Final = 0x18000
"""Added to the bits of the largest, keeps the highest digit below 128."""
LEAST: Final = 24
"""Exponents (as stored) below which the unit stays as it is: that of the smallest normal f32."""
SIZE: Final = 0x7FFFFFFF
INFINITE: Final = 0x7F800000
NAN: Final = 0x7FC00000
EVENS: Final = (*range(0, 8, 2), *range(1, 8, 2), *range(8, 16, 2), *range(9, 16, 2))
"""Lanes in the order in which the bytes of masked words of 4 bits hold them."""


def fits(product: Product, site: Site) -> bool:
    """Whether the schedule is for this product and device."""
    quantized = product.quantized
    if quantized is None or "dot_bytes" not in site.dialect.dots or not product.is_streamed:
        return False
    whole = quantized.zero is None or quantized.zero.is_integer()
    return whole and quantized.group % LANES == 0 and quantized.group <= LARGEST


class Digits(Streamed):
    """The streamed schedule with products in whole numbers."""

    def _sums(self, quantized: Quantized, private: bool) -> None:
        """Digits, unit and sum of every group of activations into private arrays."""
        writer, rows = self.writer, self.product.rows
        groups = quantized.inputs // quantized.group
        sized = {"q": DIGITS * rows * quantized.inputs // 4, "unit": rows * groups}
        sized["sums" if quantized.zero is None else "starts"] = (
            rows * groups * (1 if quantized.zero is None else DIGITS)
        )
        for name, size in sized.items():
            dtype = {"q": U32, "starts": I32}.get(name, F32)
            writer.line(writer.dialect.private(name, size, dtype))
        with writer.loop(Axis("m", rows), "0", str(rows)):
            row = axis("m", rows)
            with writer.loop(Axis("h", groups), "0", str(groups)):
                self._digits(quantized, private, row, axis("h", groups))

    def _digits(self, quantized: Quantized, private: bool, row: Index, group: Index) -> None:
        """One group of activations."""
        writer, size = self.writer, quantized.group
        groups, first = quantized.inputs // size, group * size
        with writer.lanes(Axis("lane", LANES)):
            values = [
                self._ordered(
                    quantized, self._input(private, row, first + at + axis("lane", LANES))
                )
                for at in range(0, size, LANES)
            ]
            largest = writer.let(I32, True, writer.wide(_largest([_size(v) for v in values])))
        most = Apply(U32, "bits", Var(I32, writer.folded("max", I32, largest)))
        stored = Apply(U32, "shift_right", _plus(most, MARGIN), constant(U32, 23))
        field = select(compare("lt", stored, constant(U32, LEAST)), constant(U32, LEAST), stored)
        factor = _float(Apply(U32, "sub", constant(U32, 276), field))
        unit = _float(Apply(U32, "sub", field, constant(U32, 22)))
        nan = Apply(F32, "bits", constant(U32, NAN))
        at = row * groups + group
        writer.put("unit", at, select(compare("ge", most, constant(U32, INFINITE)), nan, unit))
        scale = Var(F32, writer.let(F32, False, writer.scalar(factor)))
        total: Expr | None = None
        with writer.lanes(Axis("lane", LANES)):
            for v, value in enumerate(values):
                scaled = Apply(F32, "round", Apply(F32, "mul", value, scale))
                whole = Apply(I32, "convert", scaled)
                total = whole if total is None else Apply(I32, "add", total, whole)
                raised = Apply(U32, "xor", _plus(Apply(U32, "bits", whole), CENTRE), _u32(CENTRE))
                for digit in range(DIGITS):
                    moved = Apply(U32, "shift_right", raised, constant(U32, 8 * digit))
                    byte = Apply(I8, "convert", moved if digit else raised)
                    place = first + v * LANES + axis("lane", LANES)
                    writer.put("q", self._place(row, digit) + place, byte, I8)
            assert total is not None
            summed = writer.let(I32, True, writer.wide(total))
        self._start(quantized, at, Var(I32, writer.folded("add", I32, summed)))

    def _ordered(self, quantized: Quantized, value: Expr) -> Expr:
        """A vector of activations in the order of the words' bytes."""
        writer = self.writer
        name = writer.let(F32, True, writer.wide(value))
        if quantized.bits == 4:
            lanes = [writer.dialect.lane(name, place) for place in EVENS]
            name = writer.let(F32, True, writer.dialect.gathered(F32, lanes))
        return Var(F32, name, True)

    def _start(self, quantized: Quantized, at: Index, total: Expr) -> None:
        """What the sums of a group start with: its zero point; or its sum, for its bias."""
        writer = self.writer
        if quantized.zero is None:
            unit = Cell(F32, "unit", at)
            writer.put("sums", at, Apply(F32, "mul", Apply(F32, "convert", total), unit))
            return
        zero = constant(I32, int(quantized.zero))
        for digit in range(DIGITS):
            part = Apply(I32, "shift_right", total, constant(I32, 8 * digit)) if digit else total
            if digit < DIGITS - 1:
                part = Apply(I32, "and", part, constant(I32, 255))
            writer.put("starts", at * DIGITS + digit, Apply(I32, "mul", part, zero), I32)

    def _place(self, row: Index, digit: int) -> Index:
        """Where a row's digits of one kind begin, in bytes."""
        return row * self.product.inputs + digit * self.product.rows * self.product.inputs

    def _group(self, quantized: Quantized, private: bool, panel: Index, group: Index) -> None:
        writer, rows = self.writer, self.product.rows
        output = self.output(panel)
        groups, words = quantized.inputs // quantized.group, quantized.group // quantized.per
        for m in range(rows):
            for digit in range(DIGITS):
                at = (number(m * groups) + group) * DIGITS + digit
                start = constant(I32, 0) if quantized.zero is None else Cell(I32, "starts", at)
                writer.line(f"{writer.type(I32, True)} a{m}_{digit} = {writer.wide(start)};")
        for w in range(words):
            word = quantized.word(output, group * words + w)
            for n, weights in enumerate(_bytes(quantized, word)):
                input = group * quantized.group + (w * quantized.per + 4 * n)
                for m in range(rows):
                    for digit in range(DIGITS):
                        self._dot(m, digit, input, weights)
        step = writer.wide(quantized.scaled(self.builder, output, group))
        for m in range(rows):
            total = writer.let(F32, True, self._total(m))
            unit = writer.wide(Cell(F32, "unit", number(m * groups) + group))
            writer.line(f"y{m} = {fma(writer, f'({total} * {unit})', step, f'y{m}')};")
            if quantized.zero is None:
                offset = writer.wide(quantized.offset(self.builder, output, group))
                x = writer.wide(Cell(F32, "sums", number(m * groups) + group))
                writer.line(f"y{m} = {fma(writer, offset, x, f'y{m}')};")

    def _dot(self, row: int, digit: int, input: Index, weights: Expr) -> None:
        """Four weights of 16 outputs times one digit of four activations."""
        name = f"a{row}_{digit}"
        at = (self._place(number(row), digit) + input) // 4
        product = Apply(I32, "dot_bytes", Var(I32, name, True), weights, Cell(U32, "q", at))
        texts = [self.writer.wide(arg) for arg in product.args]
        text = self.writer.dialect.apply("dot_bytes", I32, I32, LANES, texts)
        self.writer.line(f"{name} = {text};")

    def _total(self, row: int) -> str:
        """The three sums of a group as one float, in its unit."""
        low, middle, high = (Var(I32, f"a{row}_{digit}", True) for digit in range(DIGITS))
        upper = Apply(I32, "add", Apply(I32, "shift_left", high, constant(I32, 8)), middle)
        writer = self.writer
        floats = [
            writer.dialect.apply("convert", F32, I32, LANES, [self._now(part)])
            for part in (upper, low)
        ]
        return fma(writer, floats[0], writer.wide(constant(F32, 256.0)), floats[1])

    def _now(self, part: Expr) -> str:
        """An expression of sums that change: spelled, not remembered."""
        if isinstance(part, Var):
            return part.name
        assert isinstance(part, Apply)
        texts = [
            self.writer.wide(arg) if isinstance(arg, Const) else self._now(arg) for arg in part.args
        ]
        return self.writer.dialect.apply(part.op, part.dtype, part.dtype, LANES, texts)


def _bytes(quantized: Quantized, word: Expr) -> list[Expr]:
    """The values in a word, four to a vector of bytes."""
    if quantized.bits == 8:
        return [word]
    mask = _u32(0x0F0F0F0F)
    return [
        Apply(U32, "and", word, mask),
        Apply(U32, "and", Apply(U32, "shift_right", word, constant(U32, 4)), mask),
    ]


def _u32(value: int) -> Expr:
    return constant(U32, value)


def _plus(value: Expr, by: int) -> Expr:
    return Apply(U32, "add", value, constant(U32, by))


def _float(field: Expr) -> Expr:
    """The power of two with a stored exponent."""
    return Apply(F32, "bits", Apply(U32, "shift_left", field, constant(U32, 23)))


def _size(value: Expr) -> Expr:
    """The bits of an absolute value: in order as numbers, infinity and NaN the largest."""
    return Apply(I32, "and", Apply(I32, "bits", value), constant(I32, SIZE))


def _largest(values: list[Expr]) -> Expr:
    """The largest, lane by lane."""
    found = values[0]
    for value in values[1:]:
        found = Apply(I32, "max", found, value)
    return found
