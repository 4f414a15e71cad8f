"""The weight at an output and an input of any format, as a scalar expression made from its record.

Who calls says how an element of a stored array is read, so the arrays may be kernels' arguments,
values of a graph, or what is in shared memory. The steps are those of ``ptir.weights.decode``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from ptir.codegen.expressions.bits import (
    BIAS,
    EXPONENT,
    FRACTION,
    joined,
    looked_up,
    moved_up,
    spanning,
    taken,
)
from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import Apply, Coordinate, Expr, compare, constant, select
from ptir.codegen.expressions.index import Index, number, unravel_index
from ptir.codegen.expressions.movement import limited
from ptir.errors import UnsupportedError
from ptir.types import F32, I32, U32
from ptir.weights.record import (
    Codebook,
    FusedFormat,
    Grid,
    Integer,
    Numbers,
    Plane,
    PowerOfTwo,
    Quantity,
    SmallFloat,
    StoredArray,
    Top,
    WeightFormat,
)
from ptir.weights.words import WORD, greatest

Read: TypeAlias = Callable[[StoredArray, Index, Index], Expr]
"""The element at a line and a column of a stored array, in the array's type."""
SIGN: Final = 31
"""The sign's bit of an f32."""
INFINITE: Final = greatest(EXPONENT) << FRACTION
NAN: Final = INFINITE | 1 << (FRACTION - 1)


def value_at(format: WeightFormat, read: Read, output: Index, input: Index) -> Expr:
    """One weight as f32."""
    return _Place(format, read, output, input).quantity(format.value)


def fused_value_at(format: FusedFormat, reads: Sequence[Read], output: Index, input: Index) -> Expr:
    """One weight of runs of several formats; each reads arrays of its own, from its first output.

    Where several runs may hold the output, those that do not are read at their nearest one.
    """
    found: Expr | None = None
    end = format.outputs
    for run, read in reversed(list(zip(format.runs, reads, strict=True))):
        begin, above = end - run.outputs, end
        end = begin
        if output.high < begin or output.low >= above:
            continue
        value = value_at(run.format, read, limited(output - begin, run.outputs), input)
        below = compare("lt", Coordinate(I32, output), constant(I32, above))
        found = value if found is None else select(below, value, found)
    assert found is not None, (format, output)
    return found


class _Place:
    """One weight of a format."""

    def __init__(self, format: WeightFormat, read: Read, output: Index, input: Index) -> None:
        self._format, self._read, self._output = format, read, output
        self._block, self._inside = input // format.block, input % format.block

    def quantity(self, quantity: Quantity) -> Expr:
        """Numbers times a scale plus a minimum."""
        numbers, scale = quantity.numbers, quantity.scale
        found = constant(F32, numbers) if isinstance(numbers, float) else self.number(numbers)
        if scale is not None:
            found = Apply(F32, "mul", found, self.quantity(scale))
        if quantity.minimum is None:
            return found
        return Apply(F32, "add", found, self.quantity(quantity.minimum))

    def number(self, numbers: Numbers) -> Expr:
        """One number of a block."""
        if isinstance(numbers.reading, Grid):
            raise UnsupportedError(
                f"weight format {self._format.name}: kernels have no grids; they read the words"
                " that ptir.weights.affine_form makes of it"
            )
        place = self._inside // numbers.each
        first = self._format.array(numbers.planes[0].array)
        if first.dtype.is_float:
            return cast(F32, self._element(first, self._first_bit(numbers.planes[0], place)))
        code: Expr | None = None
        shift = 0
        for plane in numbers.planes:
            part = moved_up(self._bits(plane, place), shift)
            code = part if code is None else Apply(U32, "or", code, part)
            shift += plane.bits
        assert code is not None
        return READINGS[type(numbers.reading)](numbers.reading, code, numbers.bits)

    def _first_bit(self, plane: Plane, place: Index) -> Index:
        """The bit of a block where a number begins."""
        found = number(plane.first)
        for value, digit in zip(
            unravel_index(place, [d.size for d in plane.order]), plane.order, strict=True
        ):
            found = found + value * digit.step
        return found

    def _bits(self, plane: Plane, place: Index) -> Expr:
        """The bits of a number in a plane."""
        stored = self._format.array(plane.array)
        unit, begin = stored.dtype.bits, self._first_bit(plane, place)
        shifts = {first % unit for first in plane.places()}
        count = -(-(max(shifts) + plane.bits) // unit)
        units = [
            Apply(U32, "convert", self._element(stored, begin + n * unit))
            if unit < WORD
            else self._element(stored, begin + n * unit)
            for n in range(count)
        ]
        if count * unit <= WORD:
            whole = joined(units, unit)
            return whole if plane.bits == count * unit else taken(whole, begin % unit, plane.bits)
        if unit != WORD or count != 2:
            raise UnsupportedError(
                f"weight format {self._format.name}: {plane.bits} bits lie in {count} elements of"
                f" {stored.dtype}; kernels read them from up to {WORD} bits, or two words"
            )
        return spanning(units[0], units[1], begin % unit, plane.bits)

    def _element(self, stored: StoredArray, bit: Index) -> Expr:
        """The element of this block in which a bit lies, or the last one where it lies behind."""
        inside = limited(bit // stored.dtype.bits, stored.count)
        line = self._output // stored.outputs
        return self._read(stored, line, (self._block // stored.blocks) * stored.count + inside)


def _integer(reading: Integer, code: Expr, bits: int) -> Expr:
    found = Apply(I32, "bits", code)
    if reading.signed:
        half = constant(I32, 1 << (bits - 1))
        found = Apply(I32, "sub", Apply(I32, "xor", found, half), half)
    elif reading.lowest:
        found = Apply(I32, "add", found, constant(I32, reading.lowest))
    return Apply(F32, "convert", found)


def _codebook(reading: Codebook, code: Expr, bits: int) -> Expr:
    """The number of a code in the table."""
    return looked_up([constant(F32, value) for value in reading.values], code)


def small_float(reading: SmallFloat, code: Expr, bits: int) -> Expr:
    """The f32 of a code: exponent and fraction moved to where f32 has them.

    ``code`` is a u32 whose lowest ``bits`` bits are the number; those above are 0.

    Subnormal numbers are made as whole numbers of the least one: nothing is subnormal on the way.
    """
    size = Apply(U32, "and", code, constant(U32, greatest(reading.exponent + reading.fraction)))
    moved = moved_up(size, FRACTION - reading.fraction)
    ones = greatest(reading.exponent) << reading.fraction
    if reading.exponent == EXPONENT and reading.top is Top.IEEE:
        found = moved
    else:
        raised = Apply(U32, "add", moved, constant(U32, (BIAS - reading.bias) << FRACTION))
        least = constant(F32, 2.0 ** (1 - reading.bias - reading.fraction))
        tiny = Apply(F32, "mul", Apply(F32, "convert", size), least)
        normal = compare("ge", size, constant(U32, 1 << reading.fraction))
        found = select(normal, raised, Apply(U32, "bits", tiny))
        found = _topped(reading, size, moved, found, ones)
    if reading.signed:
        sign = Apply(U32, "shift_right", code, constant(U32, bits - 1))
        found = Apply(U32, "or", found, moved_up(sign, SIGN))
    return Apply(F32, "bits", found)


def _topped(reading: SmallFloat, size: Expr, moved: Expr, found: Expr, ones: int) -> Expr:
    """The bits of a number, or what stands for a code at the top."""
    if reading.top is Top.IEEE:
        special = Apply(U32, "or", moved, constant(U32, INFINITE))
        return select(compare("ge", size, constant(U32, ones)), special, found)
    if reading.top is Top.NUMBERS:
        return found
    last = compare("eq", size, constant(U32, ones | greatest(reading.fraction)))
    return select(last, constant(U32, NAN if reading.top is Top.NAN else 0), found)


def _power(reading: PowerOfTwo, code: Expr, bits: int) -> Expr:
    """The exponent of an f32; of powers below the least normal one, the bit of a fraction."""
    raised = BIAS - reading.bias
    field = Apply(U32, "add", code, constant(U32, raised % (1 << WORD)))
    found = moved_up(field, FRACTION)
    if raised <= 0:  # 2 ** (code - bias) is 2 ** (code + below) times the least number
        below = BIAS + FRACTION - 1 - reading.bias
        few = Apply(U32, "min", code, constant(U32, -raised))
        tiny = Apply(
            U32, "shift_left", constant(U32, 1), Apply(U32, "add", few, constant(U32, below))
        )
        normal = compare("gt", code, constant(U32, -raised))
        found = select(normal, found, tiny)
    if greatest(bits) + raised > greatest(EXPONENT) - 1:
        most = constant(U32, greatest(EXPONENT) - 1 - raised)
        found = select(compare("gt", code, most), constant(U32, NAN), found)
    return Apply(F32, "bits", found)


READINGS: Final[dict[type, Callable[[Any, Expr, int], Expr]]] = {
    Integer: _integer,
    Codebook: _codebook,
    SmallFloat: small_float,
    PowerOfTwo: _power,
}
"""What number a code stands for, by the kind of reading."""
