"""Formats as words, scales and minima: what ``dequantize`` and the kernels of products take.

Codes that stand for whole numbers of at most 8 bits become values of 4 or 8 bits in words, and the
scale of a sub-block is multiplied out. A code that stands for several weights (IQ1 to IQ3, TQ1_0)
becomes a value for each. No number changes: a value has at most 8 bits, a scale that was multiplied
out 19, and their product, which is rounded first, at most 24, as f32 has. Minima are added last, as
``ptir.weights.decode`` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptir.types import F16, F32, DType
from ptir.weights.decode import codes_of, grid_numbers, quantity_of, raw_bytes
from ptir.weights.formats import PACKED_BITS
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
from ptir.weights.words import WORD

Array = NDArray[Any]
BYTE: Final = 8


@dataclass(frozen=True)
class AffineForm:
    """How the weights of ``format`` are held: ``value * scale + minimum``, ``group`` inputs alike.

    Without a stored ``minimum`` it is the scale times ``-zero``. ``values`` are what the words
    hold: by code, or of a grid all there are, ascending.
    """

    format: WeightFormat
    bits: int
    group: int
    zero: int
    scale: DType
    minimum: DType | None
    values: tuple[int, ...]

    @property
    def held_bits(self) -> float:
        """Bits of memory for each weight."""
        floats = self.scale.bits + (self.minimum.bits if self.minimum else 0)
        return self.bits + floats / self.group

    @property
    def largest_scale(self) -> float:
        """Above this a step on the way to a weight leaves the range of its type.

        A scale is multiplied with the zero point in its own type, with values in f32.
        """
        factor = 1 << self.bits if self.scale == F32 else max(self.zero, 1)
        return float(np.finfo(self.scale.numpy).max) / factor


def affine_form(format: WeightFormat) -> AffineForm | None:
    """The form of a format; None for codes that are not whole numbers or lie in words already.

    None too where the record says that its weights become floats (``expanded``).
    """
    if format.expanded:
        return None
    numbers = _whole_numbers(format.codes)
    scale, minimum = format.value.scale, format.value.minimum
    if format.packed or numbers is None or scale is None:
        return None
    low, high = min(numbers), max(numbers)
    zero = 0 if minimum else _zero(low)
    bits = next((bits for bits in PACKED_BITS if high + zero < 1 << bits), None)
    if bits is None or low + zero < 0:
        return None
    shared = [
        one.numbers.each
        for part in (scale, minimum)
        for one in (part.within() if part else ())
        if isinstance(one.numbers, Numbers)
    ]
    return AffineForm(
        format,
        bits,
        math.gcd(*shared),
        zero,
        _dtype(scale),
        _dtype(minimum) if minimum else None,
        tuple(number + zero for number in numbers),
    )


def held_as(format: WeightFormat) -> str:
    """How a product holds weights of a format in memory, for people, and why as floats."""
    form = affine_form(format)
    if form is None:
        return f"floats of --dtype: {format.expanded or 'its codes are no whole numbers'}"
    minimum = " and a minimum" if form.minimum else ""
    return f"words of {form.bits} bits, a scale{minimum} for {form.group} inputs"


def affine_arrays(form: AffineForm, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """``words`` u32[outputs, words], ``scale`` and, where it is stored, ``minimum`` by group.

    ``arrays`` are those of the format's record.
    """
    raw = raw_bytes(form.format, arrays)
    codes = codes_of(form.format.codes, raw)
    outputs = codes.shape[0]
    values, reading = codes, form.format.codes.reading
    if isinstance(reading, Grid):
        values = grid_numbers(reading, codes, form.format.bits) + np.int8(form.zero)
        values = values.view(np.uint8)
    elif form.values != tuple(range(len(form.values))):
        values = np.array(form.values, np.uint8)[codes]
    groups = codes.shape[1] * form.format.block // form.group
    found = {"words": _words(values.reshape(outputs, -1), form.bits)}
    quantities = {"scale": (form.format.value.scale, form.scale)}
    if form.minimum is not None:
        quantities["minimum"] = (form.format.value.minimum, form.minimum)
    for name, (quantity, dtype) in quantities.items():
        assert quantity is not None
        of_groups = quantity_of(quantity, raw, form.group)
        shape = (outputs, codes.shape[1], form.format.block // form.group)
        found[name] = np.broadcast_to(of_groups, shape).reshape(outputs, groups).astype(dtype.numpy)
    return found


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


def _dtype(quantity: Quantity) -> DType:
    """f16 where a scale is stored as such, f32 where it is computed."""
    numbers = quantity.numbers
    plain = quantity.scale is None and quantity.minimum is None
    return F16 if plain and isinstance(numbers, Numbers) and numbers.reading == FLOATS[F16] else F32


def _words(values: Array, bits: int) -> Array:
    """Values of 4 or 8 bits, each in a byte, as little-endian words, low bits first."""
    packed = values if bits == BYTE else values[:, ::2] | values[:, 1::2] << np.uint8(bits)
    whole = -(-packed.shape[1] // (WORD // BYTE)) * (WORD // BYTE)
    if whole != packed.shape[1]:
        packed = np.pad(packed, ((0, 0), (0, whole - packed.shape[1])))
    return np.ascontiguousarray(packed).view("<u4").astype(np.uint32, copy=False)
