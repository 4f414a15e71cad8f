"""Codes as stored weights, by nothing but their record: the way back of ``ptir.weights.decode``.

Which codes a weight gets is the business of a quantizer (``ptir.weights.quantizers``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptir.weights.decode import BYTE
from ptir.weights.record import (
    Codebook,
    Integer,
    Numbers,
    Plane,
    PowerOfTwo,
    Quantity,
    SmallFloat,
    WeightFormat,
)
from ptir.weights.words import greatest

Array = NDArray[Any]
Codes = Mapping[Numbers, Array]
"""Codes [outputs, blocks, numbers] of the numbers of a record."""


def numbers_within(quantity: Quantity) -> tuple[Numbers, ...]:
    """All stored numbers that make up a quantity, its own first, each once."""
    found = (one.numbers for one in quantity.within())
    return tuple(dict.fromkeys(one for one in found if isinstance(one, Numbers)))


def encode(format: WeightFormat, codes: Codes) -> dict[str, Array]:
    """The arrays of a record, by name, whose numbers are ``codes``.

    Numbers that share bits must agree on them. Raises ``ValueError`` where numbers are missing,
    and for formats whose blocks share entries of an array.
    """
    wanted = numbers_within(format.value)
    if missing := [one for one in wanted if one not in codes]:
        raise ValueError(f"{format.name}: no codes came for {missing[0]}")
    if shared := [one.name for one in format.arrays if (one.outputs, one.blocks) != (1, 1)]:
        raise ValueError(f"{format.name}: blocks share entries of {shared[0]!r}")
    outputs, blocks, _ = codes[format.codes].shape
    raw = {
        one.name: np.zeros((outputs, blocks, one.bits // BYTE), np.uint8) for one in format.arrays
    }
    for numbers in wanted:
        put_codes(numbers, codes[numbers], raw)
    return {
        one.name: raw[one.name].reshape(outputs, -1).view(one.dtype.numpy) for one in format.arrays
    }


def put_codes(numbers: Numbers, codes: Array, raw: Mapping[str, Array]) -> None:
    """Set the bits of codes in the bytes u8[outputs, blocks, bytes] of arrays, which are 0."""
    shift = 0
    for plane in numbers.planes:
        part = codes >> codes.dtype.type(shift) if shift else codes
        _put(plane, part & codes.dtype.type(greatest(plane.bits)), raw[plane.array])
        shift += plane.bits


def _put(plane: Plane, values: Array, stored: Array) -> None:
    """Set the bits of a plane, those that begin at the same bit of their bytes together."""
    places = np.array(list(plane.places()))
    places, numbers = np.unique(places, return_index=True)  # those that share bits have the same
    for shift in range(BYTE):
        at = places % BYTE == shift
        first, which = places[at] // BYTE, numbers[at]
        if not first.size:
            continue
        chosen = values[..., _slice(which)]
        for byte in range((shift + plane.bits - 1) // BYTE + 1):
            moved = chosen << shift if not byte else chosen >> (BYTE * byte - shift)
            stored[..., _slice(first + byte)] |= moved.astype(np.uint8)


def _slice(indices: Array) -> slice | Array:
    """Indices that are equally far apart as a slice, which NumPy reads faster."""
    step = int(indices[1] - indices[0]) if indices.size > 1 else 1
    if step <= 0 or (np.diff(indices) != step).any():
        return indices
    return slice(int(indices[0]), int(indices[-1]) + 1, step)


def _integer(reading: Integer, numbers: Array, bits: int) -> Array:
    low, most = reading.range(bits)
    codes: Array = (np.clip(numbers, low, most) - (0 if reading.signed else low)).astype(np.int16)
    return (codes & np.int16(greatest(bits))).astype(np.uint8)


def _codebook(reading: Codebook, numbers: Array, bits: int) -> Array:
    """The nearest entry; halfway between two the one that is smaller, of equal ones the first."""
    entries, first = np.unique(np.array(reading.values, np.float32), return_index=True)
    middles = (entries[1:] + entries[:-1]) / 2
    above = np.searchsorted(middles, numbers, side="right")
    below = np.searchsorted(middles, numbers, side="left")
    codes: Array = first[np.where(numbers < 0, above, below)].astype(np.uint8)
    return codes


def _small_float(reading: SmallFloat, numbers: Array, bits: int) -> Array:
    if reading != SmallFloat(5, 10, 15):
        raise ValueError(f"numbers are not rounded to {reading}; f16 alone is")
    with np.errstate(over="ignore"):
        return numbers.astype(np.float16).view(np.uint16)


def _power(reading: PowerOfTwo, numbers: Array, bits: int) -> Array:
    """Powers of two as they are; 0 as the least one."""
    exponent = np.frexp(numbers)[1] - 1 + reading.bias
    return np.where(numbers > 0, np.clip(exponent, 0, greatest(bits)), 0).astype(np.uint8)


CODES: Final[dict[type, Callable[[Any, Array, int], Array]]] = {
    Integer: _integer,
    Codebook: _codebook,
    SmallFloat: _small_float,
    PowerOfTwo: _power,
}
"""The codes of the nearest numbers, by the kind of reading; integers must be whole already."""


def codes_for(numbers: Numbers, values: Array) -> Array:
    """The codes of numbers of a record that stand for ``values``."""
    return CODES[type(numbers.reading)](numbers.reading, values, numbers.bits)
