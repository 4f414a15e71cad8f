"""Few rows times weights of 4 or 8 bits by dot products of bytes, as exact as by f32.

Activations become signed digits of 8 bits (``digit_parts``). Words of weights times digits add up
in integers without any error; a group's three sums become one float at its end. The digits are made
once per worker, in the kernel's head.
"""

from __future__ import annotations

from ptir.codegen.expressions.expr import Apply, Cell, Expr, Var, constant
from ptir.codegen.expressions.index import Axis, Index, axis, number
from ptir.codegen.families.matmul.digit_parts import DIGITS, digits_of, ordered
from ptir.codegen.families.matmul.digit_parts import fits as digits_fit
from ptir.codegen.families.matmul.parts import Product, add_product, dot_words
from ptir.codegen.families.matmul.streamed import Streamed
from ptir.codegen.schedules.kernel import Site
from ptir.codegen.weights.panels import LANES
from ptir.codegen.weights.quantized import Quantized
from ptir.types import F32, I8, I32, U32


def fits(product: Product, site: Site) -> bool:
    """Whether the schedule is for this product and device."""
    return product.is_streamed and digits_fit(product, site)


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
            writer.array(name, size, dtype)
        with writer.loop(Axis("m", rows), 0, rows):
            row = axis("m", rows)
            with writer.loop(Axis("h", groups), 0, groups):
                self._digits(quantized, private, row, axis("h", groups))

    def _digits(self, quantized: Quantized, private: bool, row: Index, group: Index) -> None:
        """One group of activations."""
        writer, size = self.writer, quantized.group
        groups, first = quantized.inputs // size, group * size
        values = [
            ordered(writer, quantized, self._input(private, row, first + at + axis("lane", LANES)))
            for at in range(0, size, LANES)
        ]

        def put(vector: int, digit: int, byte: Expr) -> None:
            place = first + vector * LANES + axis("lane", LANES)
            writer.put("q", self._place(row, digit) + place, byte, I8)

        at = row * groups + group
        unit, total = digits_of(writer, values, put)
        writer.put("unit", at, unit)
        self._start(quantized, at, total)

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

    def _group(
        self, quantized: Quantized, private: bool, panel: Index, group: Index, results: list[Var]
    ) -> None:
        """Add one group's products to the result of every row."""
        writer, rows = self.writer, self.product.rows
        output = self.output(panel)
        groups, words = quantized.inputs // quantized.group, quantized.group // quantized.per
        sums: list[list[Var]] = [[] for _ in results]
        for m, line in enumerate(sums):
            for digit in range(DIGITS):
                at = (number(m * groups) + group) * DIGITS + digit
                start = constant(I32, 0) if quantized.zero is None else Cell(I32, "starts", at)
                line.append(writer.declare(writer.wide(start), f"a{m}_{digit}"))
        for w in range(words):
            word = quantized.word(output, group * words + w)
            for n, weights in enumerate(quantized.bytes_of(word)):
                input = group * quantized.group + (w * quantized.per + 4 * n)
                for m in range(rows):
                    for digit in range(DIGITS):
                        at = (self._place(number(m), digit) + input) // 4
                        weight, x = writer.wide(weights), Cell(U32, "q", at)
                        dot_words(writer, "dot_bytes", sums[m][digit], weight, x)
        step = writer.wide(quantized.scaled(self.builder, output, group))
        for m, result in enumerate(results):
            total = writer.let(self._total(*sums[m]))
            unit = writer.wide(Cell(F32, "unit", number(m * groups) + group))
            add_product(writer, result, Apply(F32, "mul", total, unit), step)
            if quantized.zero is None:
                x = Cell(F32, "sums", number(m * groups) + group)
                self.added(result, quantized.offset(self.builder, output, group), x)

    def _total(self, low: Var, middle: Var, high: Var) -> Expr:
        """The three sums of a group as one float, in its unit."""
        apply = self.writer.apply  # of sums that change: not remembered
        upper = apply("add", I32, apply("shift_left", I32, high, constant(I32, 8)), middle)
        floats = [Apply(F32, "convert", part) for part in (upper, low)]
        return apply("fma", F32, floats[0], constant(F32, 256.0), floats[1])
