"""Formats as words, scales and minima: what ``dequantize`` and the kernels of products take.

Codes that stand for whole numbers of at most 8 bits become values of as few bits in words. A code
that stands for several weights (IQ1 to IQ3) stays one, beside a plane of
signs, and digits of TQ1_0 stay five in a byte (``ptir.weights.vectors``). Scales of super-blocks
stay apart from the whole numbers of their groups. No number changes: a value has at most 8 bits, a
scale times a whole number 19, and their product, which is rounded first, at most 24, as f32 has.
Minima are added last, as ``ptir.weights.decode`` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptir.types import BF16, DTYPES, F16, F32, I8, U8, U32, DType
from ptir.weights.decode import (
    READINGS,
)
from ptir.weights.grids import grid
from ptir.weights.record import (
    FLOATS,
    Codebook,
    Grid,
    Integer,
    Numbers,
    Quantity,
    Signs,
    WeightFormat,
)
from ptir.weights.tables import TYPES, Table, entries
from ptir.weights.vectors import DIGITS, MIDDLE, Fifths, Vectors, code_bits
from ptir.weights.words import (
    BITS,
    BYTE,
    NIBBLES,
    ODD_NIBBLES,
    TABLE_BITS,
    WORD,
    words_for,
)

Array = NDArray[Any]
F8: Final = DTYPES["f8e4m3fn"]
SCALE, MINIMUM, SIGNS, SUPER = "scale", "minimum", "signs", "super_"
"""Names of arrays; that of super-blocks has the last one in front."""
ORDER: Final = "order"
"""The name of the i32 that say which input each one in the words is (``WeightFormat.order``)."""
WHOLE: Final = (U8, I8)
"""Types of whole numbers that are multiplied with the float of a super-block."""
LARGEST_GROUP: Final = 128
"""Most inputs of a group: kernels sum so many products of bytes in integers."""


@dataclass(frozen=True)
class GroupFloats:
    """How the float of each group is held: as ``dtype``; or as whole numbers of that type.

    These are multiplied with an f16 of each ``super_block`` inputs, which is 0 without one. An
    element is for ``each`` inputs and may be a ``code``; ``factor`` is a power of two for all.
    """

    dtype: DType
    each: int
    super_block: int = 0
    factor: float = 1.0
    code: str = ""


@dataclass(frozen=True)
class AffineForm:
    """How the weights of ``format`` are held: ``value * scale + minimum``, ``group`` inputs alike.

    Without a stored ``minimum`` it is the scale times ``-zero``. ``values`` are what codes stand
    for, or of a grid all there are, ascending. Words hold them; or codes, which stand for what a
    ``table`` says: for other numbers than whole ones there are no ``values``.
    """

    format: WeightFormat
    bits: int
    group: int
    zero: int
    scale: GroupFloats
    minimum: GroupFloats | None
    values: tuple[int, ...]
    table: Table | None = None
    vectors: Vectors | Fifths | None = None

    def words_for(self, size: int) -> int:
        """How many words hold ``size`` values."""
        if self.vectors is None:
            return words_for(size, self.bits)
        return self.vectors.words_for(size)

    @property
    def word_bits(self) -> int:
        """Whole bits of a value in words, signs beside them included."""
        vectors = self.vectors
        return self.bits if vectors is None else round(vectors.held_bits + vectors.signed)

    @property
    def parts(self) -> dict[str, tuple[DType, int]]:
        """The arrays beside the words, by name: their types, and inputs that share an element."""
        found: dict[str, tuple[DType, int]] = {}
        if self.vectors is not None and self.vectors.signed:
            found[SIGNS] = U32, WORD
        for name, floats in ((SCALE, self.scale), (MINIMUM, self.minimum)):
            if floats is not None:
                if name == SCALE or floats.code != NIBBLES:
                    count = 2 if floats.code == ODD_NIBBLES else 1
                    found[name] = floats.dtype, floats.each * count
                if floats.super_block:
                    found[SUPER + name] = F16, floats.super_block
        return found

    @property
    def sharing(self) -> int:
        """Groups that share a scale."""
        return self.scale.each // self.group

    @property
    def held_bits(self) -> float:
        """Bits of memory for each weight."""
        words = self.bits if self.vectors is None else self.vectors.held_bits
        return words + sum(dtype.bits / each for dtype, each in self.parts.values())

    @property
    def largest_scale(self) -> float:
        """Above this a step on the way to a weight leaves the range of its type.

        A scale is multiplied with the zero point in its own type, with values in f32.
        """
        if self.scale.super_block:
            return float(np.finfo(np.float16).max)
        is_half = self.scale.dtype == F16
        if not self.values and self.table is not None:
            numbers = entries(self.table, self.bits)
            factor = float(np.abs(numbers[np.isfinite(numbers)]).max())
        else:
            factor = max(self.zero, 1) if is_half else 1 << max(self.values).bit_length()
        return float(np.finfo(np.float16 if is_half else np.float32).max) / factor


def affine_form(format: WeightFormat) -> AffineForm | None:
    """The form of a format; None for codes that no table has, or that lie in words already.

    None too where the record says that its weights become floats (``expanded``).
    """
    numbers = _whole_numbers(format.codes)
    scale, minimum = format.value.scale, format.value.minimum
    if format.expanded or format.packed or scale is None:
        return None
    if numbers is None or (min(numbers) < 0 and _group_floats(scale).dtype == F32):
        return _table_form(format, scale, minimum)
    low, high = min(numbers), max(numbers)
    if isinstance(format.codes.reading, Grid):
        return _vector_form(format, format.codes.reading, numbers, scale)
    zero = 0 if minimum else _zero(low)
    values = tuple(number + zero for number in numbers)
    bits = next((bits for bits in BITS if high + zero < 1 << bits), None)
    if bits is None or low + zero < 0:
        return None
    table = _table(values)
    if table is not None and len(table).bit_length() - 1 < bits:
        bits = len(table).bit_length() - 1
    else:
        table = None
    shared = [one.each for part in (scale, minimum) if part for one in _numbers_within(part)]
    floats = _group_floats(scale), _group_floats(minimum) if minimum else None
    group = math.gcd(*shared, LARGEST_GROUP)
    return AffineForm(format, bits, group, zero, *_in_nibbles(format, *floats), values, table)


def _table_form(
    format: WeightFormat, scale: Quantity, minimum: Quantity | None
) -> AffineForm | None:
    """The form of a format whose codes stay: of floats, or of whole numbers below 0.

    Those cannot be raised by a zero point, whose product with a scale of f32 is rounded.
    """
    table = _table_of(format.codes)
    if table is None or minimum is not None:
        return None
    shared = (one.each for one in _numbers_within(scale))
    group, floats = math.gcd(*shared, LARGEST_GROUP), _group_floats(scale)
    return AffineForm(format, format.bits, group, 0, floats, None, (), table)


def _table_of(codes: Numbers) -> Table | None:
    """What codes stand for, as words of their bits have it; None where no table does."""
    reading, count = codes.reading, 1 << codes.bits
    if isinstance(reading, Grid):
        return None
    numbers = READINGS[type(reading)](reading, np.arange(count), codes.bits)
    if codes.bits in BITS and codes.bits <= TABLE_BITS:
        return tuple(map(float, numbers)) if np.isfinite(numbers).all() else None
    if codes.bits != BYTE:
        return None
    same = (t for t in TYPES if np.array_equal(entries(t, BYTE), numbers, equal_nan=True))
    return next(same, None)


def _vector_form(
    format: WeightFormat, reading: Grid, numbers: tuple[int, ...], scale: Quantity
) -> AffineForm | None:
    """The form of a format whose codes stay what they are: numbers of vectors, and signs."""
    signed = reading.signs is not Signs.NONE
    group = math.gcd(*(one.each for one in _numbers_within(scale)), LARGEST_GROUP)
    if reading.span == DIGITS:
        fifths, floats = Fifths(), _group_floats(scale)
        digits = tuple(number + fifths.zero for number in numbers)
        return AffineForm(format, BYTE, group, fifths.zero, floats, None, digits, vectors=fifths)
    bits = code_bits(format.bits - reading.signs.value)
    if bits is None or reading.span % (WORD // BYTE):
        return None
    zero = MIDDLE if signed else _zero(min(numbers))
    vectors = Vectors(reading.table, bits, reading.span, zero, signed)
    floats = _odd_nibbles(_group_floats(scale), factors_of(scale)[0])
    values = tuple(number + zero for number in numbers)
    return AffineForm(format, BYTE, group, zero, floats, None, values, vectors=vectors)


def _odd_nibbles(floats: GroupFloats, numbers: list[Numbers]) -> GroupFloats:
    """Whole numbers that are one more than twice at most four bits: those of two in one byte."""
    reading, bits = numbers[0].reading, numbers[0].bits
    if not floats.super_block or not isinstance(reading, Codebook) or bits > BYTE // 2:
        return floats
    odds = tuple(float(2 * n + 1) for n in range(1 << bits))
    return replace(floats, code=ODD_NIBBLES) if reading.values == odds else floats


def _in_nibbles(
    format: WeightFormat, scale: GroupFloats, minimum: GroupFloats | None
) -> tuple[GroupFloats, GroupFloats | None]:
    """Whole numbers of four bits at most for scales and minima: both of a group in one byte."""
    if minimum is None or scale != minimum or not scale.super_block:
        return scale, minimum
    both = (format.value.scale, format.value.minimum)
    numbers = [factors_of(one)[0][0] for one in both if one]
    if any(one.bits > BYTE // 2 or not isinstance(one.reading, Integer) for one in numbers):
        return scale, minimum
    return replace(scale, code=NIBBLES), replace(minimum, code=NIBBLES)


def _table(values: tuple[int, ...]) -> tuple[int, ...] | None:
    """What a table of values has: itself where it is one of codes, else filled up; None if long."""
    bits = max(1, (len(values) - 1).bit_length())
    if bits > TABLE_BITS:
        return None
    return values + values[-1:] * ((1 << bits) - len(values))


def held_as(format: WeightFormat) -> str:
    """How a product holds weights of a format in memory, for people, and why as floats."""
    form = affine_form(format)
    if form is None:
        return f"floats of --dtype: {format.expanded or 'its codes are no whole numbers'}"
    minimum = " and a minimum" if form.minimum else ""
    if form.vectors is not None:
        return f"{form.vectors}, a scale for {form.group} inputs"
    looked_up = f" as {form.table.name}" if isinstance(form.table, DType) else ""
    looked_up = " in a table" if isinstance(form.table, tuple) else looked_up
    own = ", in an order of their own" if format.order else ""
    return f"words of {form.bits} bits{looked_up}, a scale{minimum} for {form.group} inputs{own}"


def factors_of(quantity: Quantity) -> tuple[list[Numbers], float]:
    """What a quantity is the product of: numbers of groups, those of the smallest first; a float.

    No numbers for one that has a minimum.
    """
    numbers, factor = list[Numbers](), 1.0
    inner: Quantity | None = quantity
    while inner is not None:
        if inner.minimum is not None:
            return [], 1.0
        if isinstance(inner.numbers, float):
            factor *= inner.numbers
        else:
            numbers.append(inner.numbers)
        inner = inner.scale
    return numbers, factor


def _group_floats(quantity: Quantity) -> GroupFloats:
    """The smallest way to hold a quantity without changing a number."""
    numbers, factor = factors_of(quantity)
    each = min(one.each for one in _numbers_within(quantity))
    if len(numbers) == 1:
        if numbers[0].bits <= BYTE and _is_power(factor) and _is_exact(numbers[0], 1.0, F8):
            return GroupFloats(F8, each, factor=factor)
        exact = (dtype for dtype in (F16, BF16) if _is_exact(numbers[0], factor, dtype))
        return GroupFloats(next(exact, F32), each)
    if len(numbers) == 2 and _is_power(abs(factor)) and numbers[1].reading == FLOATS[F16]:
        whole, half = numbers
        for dtype in WHOLE:
            if whole.bits <= BYTE and _is_exact(whole, 1.0, dtype):
                return GroupFloats(dtype, each, half.each, abs(factor))
    return GroupFloats(F32, each)


def _is_power(factor: float) -> bool:
    """Whether products with a number are exact: it is a power of two that is not large."""
    return math.frexp(factor)[0] == 0.5 and 2.0**-4 <= factor <= 1.0


def _numbers_within(quantity: Quantity) -> list[Numbers]:
    return [one.numbers for one in quantity.within() if isinstance(one.numbers, Numbers)]


def _is_exact(numbers: Numbers, factor: float, dtype: DType) -> bool:
    """Whether a type has all the numbers that codes of at most 8 bits stand for, times a factor."""
    if numbers.bits > BYTE:
        return numbers.reading == FLOATS.get(dtype) and abs(factor) == 1.0
    codes = np.arange(1 << numbers.bits)
    found = READINGS[type(numbers.reading)](numbers.reading, codes, numbers.bits)
    found = found[np.isfinite(found)] * np.float32(factor)
    with np.errstate(over="ignore", invalid="ignore"):
        kept = found.astype(dtype.numpy).astype(np.float32)
    return bool((kept == found).all())


def _whole_numbers(codes: Numbers) -> tuple[int, ...] | None:
    """The number that each code stands for, where all are whole; of a grid all, ascending."""
    reading = codes.reading
    if isinstance(reading, Grid):
        there = set(grid(reading.table).ravel().tolist())
        signs = (1, -1) if reading.signs is not Signs.NONE else (1,)
        return tuple(sorted(sign * one for one in there for sign in signs))
    if codes.bits > BYTE:
        return None
    if isinstance(reading, Codebook) and all(value == int(value) for value in reading.values):
        return tuple(map(int, reading.values))
    if not isinstance(reading, Integer):
        return None
    _, most = reading.range(codes.bits)
    span = 1 << codes.bits
    return tuple(
        n - span if reading.signed and n > most else n + reading.lowest for n in range(span)
    )


def _zero(low: int) -> int:
    """What is added to make all numbers positive: a power of two, by which products are exact."""
    return 1 << (-low - 1).bit_length() if low < 0 else 0
