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
from ptir.weights.record import (
    FLOATS,
    Codebook,
    FusedFormat,
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

Array = NDArray[Any]


def decode(format: WeightFormat, arrays: Mapping[str, Array]) -> Array:
    """The weight f32[outputs, inputs] that ``arrays``, by the names of the record, hold.

    Each has the shape that ``StoredArray`` says. Raises ``ValueError`` where one has another.
    """
    own = next(one for one in format.arrays if one.outputs == one.blocks == 1)
    outputs, elements = arrays[own.name].shape
    blocks = elements // own.count
    bits = {
        one.name: _bits(one, arrays[one.name], outputs, blocks, format.name)
        for one in format.arrays
    }
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        found = _quantity(format, format.value, bits)
    shape = (outputs, blocks, format.block)
    return np.ascontiguousarray(np.broadcast_to(found, shape)).reshape(outputs, -1)


def decode_fused(format: FusedFormat, arrays: Sequence[Mapping[str, Array]]) -> Array:
    """The weight whose runs of outputs are decoded one after the other."""
    return np.concatenate(
        [decode(run.format, of) for run, of in zip(format.runs, arrays, strict=True)]
    )


def _bits(stored: StoredArray, array: Array, outputs: int, blocks: int, name: str) -> Array:
    """The bits [outputs, blocks, bits] of an array, shared entries repeated."""
    lines, across = -(-outputs // stored.outputs), -(-blocks // stored.blocks)
    wanted = (lines, across * stored.count)
    if array.shape != wanted or array.dtype != stored.dtype.numpy:
        raise ValueError(
            f"{name}: {stored.name} is {array.dtype}{list(array.shape)};"
            f" {stored.dtype}{list(wanted)} is needed for {outputs} outputs of {blocks} blocks"
        )
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(lines, across, -1)
    cut = np.unpackbits(raw, axis=-1, bitorder="little")
    return cut[np.arange(outputs) // stored.outputs][:, np.arange(blocks) // stored.blocks]


def _quantity(format: WeightFormat, quantity: Quantity, bits: Mapping[str, Array]) -> Array:
    numbers = quantity.numbers
    if isinstance(numbers, float):
        found: Array = np.full((1, 1, 1), numbers, np.float32)
    else:
        found = np.repeat(_numbers(numbers, bits), numbers.each, axis=-1)
    if quantity.scale is not None:
        found = found * _quantity(format, quantity.scale, bits)
    if quantity.minimum is not None:
        found = found + _quantity(format, quantity.minimum, bits)
    return found


def _numbers(numbers: Numbers, bits: Mapping[str, Array]) -> Array:
    """The numbers [outputs, blocks, numbers] of every block."""
    codes, shift = np.zeros((), np.int64), 0
    for plane in numbers.planes:
        codes = codes + (_plane(plane, bits[plane.array]) << shift)
        shift += plane.bits
    return READINGS[type(numbers.reading)](numbers.reading, codes, numbers.bits)


def _plane(plane: Plane, bits: Array) -> Array:
    """The bits of a plane as whole numbers."""
    places = np.array(list(plane.places()))[:, None] + np.arange(plane.bits)
    values: Array = (bits[..., places].astype(np.int64) << np.arange(plane.bits)).sum(axis=-1)
    return values


def _integer(reading: Integer, codes: Array, bits: int) -> Array:
    low, most = reading.range(bits)
    if reading.signed:
        return np.where(codes > most, codes - (1 << bits), codes).astype(np.float32)
    return (codes + low).astype(np.float32)


def _codebook(reading: Codebook, codes: Array, bits: int) -> Array:
    values: Array = np.array(reading.values, np.float32)[codes]
    return values


def _small_float(reading: SmallFloat, codes: Array, bits: int) -> Array:
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
    power = codes - reading.bias
    largest = FLOATS[F32].bias
    return np.where(power > largest, np.nan, np.ldexp(1.0, power)).astype(np.float32)


READINGS: Final[dict[type, Callable[[Any, Array, int], Array]]] = {
    Integer: _integer,
    Codebook: _codebook,
    SmallFloat: _small_float,
    PowerOfTwo: _power,
}
"""What number codes stand for, by the kind of reading."""
