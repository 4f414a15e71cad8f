"""Stored blocks as the arrays of their ``AffineForm``: words, scales, minima and signs.

What comes in: the arrays of a format's record. What goes out: the parts that a model holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptir.weights.affine_form import (
    MINIMUM,
    SCALE,
    SIGNS,
    SUPER,
    AffineForm,
    GroupFloats,
    factors_of,
)
from ptir.weights.decode import codes_of, grid_numbers, grid_signs, quantity_of, raw_bytes
from ptir.weights.packing import pack
from ptir.weights.record import Grid, Numbers, Quantity, Reading
from ptir.weights.vectors import Fifths, Vectors
from ptir.weights.words import BYTE, NIBBLES, ODD_NIBBLES, SIGNED, WORD, greatest

Array = NDArray[Any]


def affine_arrays(form: AffineForm, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """``words`` u32[outputs, words] and the arrays of ``form.parts`` by their names.

    ``arrays`` are those of the format's record.
    """
    raw = raw_bytes(form.format, arrays)
    codes = codes_of(form.format.codes, raw)
    outputs, blocks, _ = codes.shape
    values, reading = codes, form.format.codes.reading
    found: dict[str, Array] = {}
    if isinstance(form.vectors, Fifths):
        assert isinstance(reading, Grid)
        digits = grid_numbers(reading, codes, form.format.bits) + np.int8(form.zero)
        found["words"] = form.vectors.pack(digits.reshape(outputs, -1).view(np.uint8))
    elif form.vectors is not None:
        numbers_, found = _vector_arrays(form.vectors, reading, codes, form.format.bits)
        found["words"] = pack(numbers_.reshape(outputs, -1), form.vectors.bits)
    else:
        if form.table is None and form.values != tuple(range(len(form.values))):
            values = np.array(form.values, np.uint8)[codes]
        found["words"] = pack(values.reshape(outputs, -1), form.bits)
    for name, quantity in _quantities(form).items():
        dtype, each = form.parts.get(name, form.parts[SCALE])
        shape = (outputs, blocks, form.format.block // each)
        if name == SCALE and form.scale.code == ODD_NIBBLES:
            found[name] = _paired(quantity, raw, shape)
            continue
        numbers = np.broadcast_to(quantity_of(quantity, raw, each), shape)
        found[name] = numbers.reshape(outputs, -1).astype(dtype.numpy)
    if form.scale.code == NIBBLES:
        found[SCALE] |= found.pop(MINIMUM) << np.uint8(BYTE // 2)
    return found


def _vector_arrays(
    vectors: Vectors, reading: Reading, codes: Array, bits: int
) -> tuple[Array, dict[str, Array]]:
    """The numbers of vectors, and their signs: u32[outputs, words], of 32 weights each."""
    assert isinstance(reading, Grid)
    numbers = codes[..., :: vectors.span].astype(np.uint16)
    numbers = numbers & np.uint16(greatest(bits - reading.signs.value))
    if vectors.bits == BYTE:
        numbers = numbers.astype(np.uint8)
    if not vectors.signed:
        return numbers, {}
    spread = grid_signs(reading, codes, bits).astype(np.uint32)
    spread = spread.reshape(len(codes), -1, SIGNED, WORD // BYTE)
    places = np.arange(SIGNED)[:, None] + BYTE * np.arange(WORD // BYTE)
    signs = np.bitwise_or.reduce(spread << places.astype(np.uint32), axis=(-2, -1))
    return numbers, {SIGNS: signs}


def _paired(quantity: Quantity, raw: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
    """The codes of a quantity's numbers, two in a byte."""
    assert isinstance(quantity.numbers, Numbers)
    codes = codes_of(quantity.numbers, raw).reshape(*shape, 2)
    found: Array = codes[..., 0] | codes[..., 1] << np.uint8(BYTE // 2)
    return found.reshape(len(found), -1)


def floats_of(floats: GroupFloats, array: Array) -> Array:
    """What elements without a float of a super-block stand for, as f32."""
    return np.asarray(array.astype(np.float32) * np.float32(floats.factor))


def _quantities(form: AffineForm) -> dict[str, Quantity]:
    """What the arrays beside the words hold."""
    found: dict[str, Quantity] = {}
    value = form.format.value
    for name, quantity, floats in (
        (SCALE, value.scale, form.scale),
        (MINIMUM, value.minimum, form.minimum),
    ):
        if quantity is None or floats is None:
            continue
        numbers, factor = factors_of(quantity)
        if floats.super_block:
            sign = Quantity(factor / floats.factor, Quantity(numbers[1]))
            found |= {name: Quantity(numbers[0]), SUPER + name: sign}
        else:
            found[name] = Quantity(1 / floats.factor, quantity)
    return found
