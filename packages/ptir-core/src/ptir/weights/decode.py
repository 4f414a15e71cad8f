"""Stored weights as numbers, on NumPy arrays, by nothing but their record: what kernels must equal.

Every step is one in f32, rounded once: a scale is made before it is used, ``numbers * scale``
before its minimum is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptir.types import F32
from ptir.weights.grids import grid
from ptir.weights.record import (
    FLOATS,
    Codebook,
    FusedFormat,
    Grid,
    Integer,
    Numbers,
    Plane,
    PowerOfTwo,
    Quantity,
    Signs,
    SmallFloat,
    StoredArray,
    Top,
    WeightFormat,
)
from ptir.weights.words import greatest

BYTE: Final = 8
Array = NDArray[Any]


def decode(format: WeightFormat, arrays: Mapping[str, Array]) -> Array:
    """The weight f32[outputs, inputs] that ``arrays``, by the names of the record, hold.

    Each has the shape that ``StoredArray`` says. Raises ``ValueError`` where one has another.
    """
    stored = raw_bytes(format, arrays)
    found = quantity_of(format.value, stored)
    outputs, blocks, _ = next(iter(stored.values())).shape
    shape = (outputs, blocks, format.block)
    return np.ascontiguousarray(np.broadcast_to(found, shape)).reshape(outputs, -1)


def decode_fused(format: FusedFormat, arrays: Sequence[Mapping[str, Array]]) -> Array:
    """The weight whose runs of outputs are decoded one after the other."""
    return np.concatenate(
        [decode(run.format, of) for run, of in zip(format.runs, arrays, strict=True)]
    )


def raw_bytes(format: WeightFormat, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The bytes u8[outputs, blocks, bytes] of each array, shared entries repeated."""
    own = next(one for one in format.arrays if one.outputs == one.blocks == 1)
    outputs, elements = arrays[own.name].shape
    blocks = elements // own.count
    return {
        one.name: _bytes(one, arrays[one.name], outputs, blocks, format.name)
        for one in format.arrays
    }


def _bytes(stored: StoredArray, array: Array, outputs: int, blocks: int, name: str) -> Array:
    lines, across = -(-outputs // stored.outputs), -(-blocks // stored.blocks)
    wanted = (lines, across * stored.count)
    if array.shape != wanted or array.dtype != stored.dtype.numpy:
        raise ValueError(
            f"{name}: {stored.name} is {array.dtype}{list(array.shape)};"
            f" {stored.dtype}{list(wanted)} is needed for {outputs} outputs of {blocks} blocks"
        )
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(lines, across, -1)
    if (lines, across) == (outputs, blocks):
        return raw
    return raw[np.arange(outputs) // stored.outputs][:, np.arange(blocks) // stored.blocks]


def quantity_of(quantity: Quantity, raw: Mapping[str, Array], each: int = 1) -> Array:
    """A quantity f32[outputs, blocks, numbers] of stored bytes, one number for ``each`` inputs.

    Axes have size 1 where all numbers along them are the same.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return _quantity(quantity, raw, each)


def _quantity(quantity: Quantity, raw: Mapping[str, Array], each: int) -> Array:
    numbers = quantity.numbers
    if isinstance(numbers, float):
        found: Array = np.full((1, 1, 1), numbers, np.float32)
    else:
        found = READINGS[type(numbers.reading)](
            numbers.reading, codes_of(numbers, raw), numbers.bits
        )
        if numbers.each > each:
            found = np.repeat(found, numbers.each // each, axis=-1)
    if quantity.scale is not None:
        found = found * _quantity(quantity.scale, raw, each)
    if quantity.minimum is not None:
        found = found + _quantity(quantity.minimum, raw, each)
    return found


def codes_of(numbers: Numbers, raw: Mapping[str, Array]) -> Array:
    """The codes [outputs, blocks, numbers] of every block: bytes where their bits fit one."""
    codes, shift = _plane(numbers.planes[0], raw), numbers.planes[0].bits
    if numbers.bits > BYTE:
        codes = codes.astype(np.int64)
    for plane in numbers.planes[1:]:
        codes = codes | (_plane(plane, raw).astype(codes.dtype) << codes.dtype.type(shift))
        shift += plane.bits
    return codes


def _plane(plane: Plane, raw: Mapping[str, Array]) -> Array:
    """The bits of a plane as whole numbers: of one byte each where none reaches into the next."""
    stored = raw[plane.array]
    places = np.array(list(plane.places()))
    first, shift = places // BYTE, places % BYTE
    width = int((shift + plane.bits - 1).max()) // BYTE + 1
    if width == 1:
        small: Array = stored[..., first] >> shift.astype(np.uint8)
        return small & np.uint8(greatest(plane.bits))
    wide = np.zeros((*stored.shape[:-1], len(places)), np.int64)
    for at in range(width):
        reached = np.minimum(first + at, stored.shape[-1] - 1)  # what is behind is masked away
        wide |= stored[..., reached].astype(np.int64) << (BYTE * at)
    values: Array = (wide >> shift) & greatest(plane.bits)
    return values.astype(np.uint8) if plane.bits <= BYTE else values


def _integer(reading: Integer, codes: Array, bits: int) -> Array:
    low, most = reading.range(bits)
    values = codes.astype(np.float32)
    if reading.signed:
        return np.where(codes > most, values - np.float32(1 << bits), values)
    return values + np.float32(low)


def _codebook(reading: Codebook, codes: Array, bits: int) -> Array:
    values: Array = np.array(reading.values, np.float32)[codes]
    return values


def _small_float(reading: SmallFloat, codes: Array, bits: int) -> Array:
    codes = codes.astype(np.int64)
    fraction = codes & ((1 << reading.fraction) - 1)
    last = (1 << reading.exponent) - 1
    field = (codes >> reading.fraction) & last
    whole = fraction + (np.minimum(field, 1) << reading.fraction)
    power = np.maximum(field, 1) - reading.bias - reading.fraction
    size = np.ldexp(whole.astype(np.float64), power)
    ones = (field == last) & (fraction == (1 << reading.fraction) - 1)
    if reading.top is Top.IEEE:
        size = np.where(field == last, np.where(fraction == 0, np.inf, np.nan), size)
    elif reading.top is not Top.NUMBERS:
        size = np.where(ones, np.nan if reading.top is Top.NAN else 0.0, size)
    negative = (codes >> (reading.exponent + reading.fraction)) & reading.signed
    values: Array = np.where(negative == 1, -size, size).astype(np.float32)
    return values


def _power(reading: PowerOfTwo, codes: Array, bits: int) -> Array:
    power = codes.astype(np.int64) - reading.bias
    largest = FLOATS[F32].bias
    return np.where(power > largest, np.nan, np.ldexp(1.0, power)).astype(np.float32)


def _grid(reading: Grid, codes: Array, bits: int) -> Array:
    return grid_numbers(reading, codes, bits).astype(np.float32)


def grid_numbers(reading: Grid, codes: Array, bits: int) -> Array:
    """The whole numbers i8[outputs, blocks, weights] of a grid's codes."""
    own, count = bits - reading.signs.value, codes.shape[-1]
    members = np.array([reading.member(number) for number in range(count)])
    found: Array = grid(reading.table)[codes & codes.dtype.type(greatest(own)), members]
    if reading.signs is Signs.NONE:
        return found
    return np.where(grid_signs(reading, codes, bits) == 1, -found, found)


def grid_signs(reading: Grid, codes: Array, bits: int) -> Array:
    """Whether each weight of a grid's codes is negated, [outputs, blocks, weights]: 0 or 1."""
    signs = codes.astype(np.int64) >> (bits - reading.signs.value)
    if reading.signs is Signs.EVEN:
        signs |= _parity(signs) << Signs.EVEN.value
        signs = signs >> np.arange(codes.shape[-1]) % BYTE & 1
    return signs


def _parity(values: Array) -> Array:
    """Whether the count of set bits of each byte is odd."""
    for half in (4, 2, 1):
        values = values ^ values >> half
    return values & 1


READINGS: Final[dict[type, Callable[[Any, Array, int], Array]]] = {
    Integer: _integer,
    Codebook: _codebook,
    SmallFloat: _small_float,
    PowerOfTwo: _power,
    Grid: _grid,
}
"""What number codes stand for, by the kind of reading."""
