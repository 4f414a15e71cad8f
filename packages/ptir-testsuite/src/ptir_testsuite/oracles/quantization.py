"""Oracles of quantize and dequantize: value by value, every rounding by itself, bits packed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ptir.types import F32, DType
from ptir_testsuite.oracles.elementwise import added, divided, multiplied
from ptir_testsuite.oracles.expected import Expected, exactly, from_outcomes
from ptir_testsuite.oracles.floats import FORMATS, Array, doubles, rounded, stored
from ptir_testsuite.oracles.table import Given, oracle

Index = tuple[int, ...]


def _single(outcome: Any) -> float:
    """An outcome rounded to f32."""
    return rounded(outcome, FORMATS["f32"]) if isinstance(outcome, tuple) else float(outcome)


def _scale_at(scale: Array, index: Index, axis: int, group: int) -> float:
    at = tuple(
        i // group if a == axis else min(i, n - 1)
        for a, (i, n) in enumerate(zip(index, scale.shape, strict=True))
    )
    return float(doubles(scale[at]))


def _lines(shape: Index, axis: int) -> Iterator[tuple[Index, Index]]:
    """The parts of an index before and after an axis, for every line along it."""
    for before in np.ndindex(*shape[:axis]):
        for after in np.ndindex(*shape[axis + 1 :]):
            yield before, after


def quantized(value: float, scale: float, bias: float, bits: int) -> int:
    """The integer of one value: difference and quotient rounded in f32, then half to even."""
    if scale == 0:
        return 0
    difference = _single(added(value, -bias, F32))
    ratio = _single(divided(difference, scale))
    if ratio != ratio:
        return 0
    top = (1 << bits) - 1
    return top if ratio >= top else 0 if ratio <= 0 else round(ratio)


PLANES: Final = {1: (32, 0), 3: (32, 2), 5: (32, 4), 6: (16, 4)}
"""Of bits in two planes: the values that fill whole words, and their bits in the low plane."""


def bit_places(value: int, bits: int) -> list[int]:
    """Where each bit of a value of a line is, the lowest first."""
    if bits not in PLANES:
        return [value * bits + bit for bit in range(bits)]
    count, low = PLANES[bits]
    period, inside = divmod(value, count)
    first, chunk = period * count * bits, 8 if low == 4 else 16
    behind = first + 32 * (count // chunk if low else 0)
    byte, order = (
        inside % chunk * 4 // chunk,
        inside % (chunk // 4) + inside // chunk * (chunk // 4),
    )
    high = behind + 8 * byte + order * (bits - low)
    return [first + inside * low + bit if bit < low else high + bit - low for bit in range(bits)]


@oracle("quantize")
def _quantize(given: Given) -> list[Expected]:
    operand, scale, bias = given.arrays
    axis, group, bits = given["axis"], given["group"], given["bits"]
    (result,) = given.results
    out = np.zeros(result.shape, np.uint32)
    for before, after in _lines(operand.shape, axis):
        stream = 0
        for i in range(operand.shape[axis]):
            index = (*before, i, *after)
            step, start = (_scale_at(x, index, axis, group) for x in (scale, bias))
            value = quantized(float(doubles(operand[index])), step, start, bits)
            for bit, place in enumerate(bit_places(i, bits)):
                stream |= (value >> bit & 1) << place
        for word in range(result.shape[axis]):
            out[(*before, word, *after)] = (stream >> (32 * word)) & 0xFFFFFFFF
    return [exactly(stored(out, result.dtype, result.shape))]


def number_of(value: int, table: tuple[float, ...] | DType | None) -> float:
    """The number that a value stands for: itself, an entry, or the one whose bits it is."""
    if table is None:
        return float(value)
    if not isinstance(table, DType):
        return float(table[value])
    if not table.is_float:
        return float(value - 256 if value > 127 else value)
    return float(doubles(np.array([value], np.uint8).view(table.numpy))[0])


@oracle("dequantize")
def _dequantize(given: Given) -> list[Expected]:
    words, scale, bias = given.arrays
    axis, group, bits = given["axis"], given["group"], given["bits"]
    (result,) = given.results
    outcomes = np.empty(result.shape, object)
    for before, after in _lines(result.shape, axis):
        line = [int(words[(*before, i, *after)]) for i in range(words.shape[axis])]
        stream = sum(word << (32 * i) for i, word in enumerate(line))
        for i in range(result.shape[axis]):
            index = (*before, i, *after)
            places = enumerate(bit_places(i, bits))
            value = sum((stream >> place & 1) << bit for bit, place in places)
            number = number_of(value, given["table"])
            step, start = (_scale_at(x, index, axis, group) for x in (scale, bias))
            outcomes[index] = _restored(number, step, start)
    return [from_outcomes(outcomes.reshape(-1).tolist(), result)]


LOW_BYTES: Final = {8: (4, 0), 9: (32, 1), 10: (16, 2), 12: (8, 4)}
"""Of codes: how many fill whole words, and how many of their bits are above the low byte."""


def vector_code(line: list[int], number: int, bits: int) -> int:
    """A code of a line of words: its low byte, and its share of the word behind the low bytes."""
    count, above = LOW_BYTES[bits]
    period, inside = divmod(number, count)
    words = line[period * count * bits // 32 :]
    low = words[inside // 4] >> (8 * (inside % 4)) & 255
    if not above:
        return low
    high = words[count // 4] >> (8 * (inside % 4) + inside // 4 * above)
    return low | (high & ((1 << above) - 1)) << 8


@oracle("unpack_vectors")
def _unpack_vectors(given: Given) -> list[Expected]:
    codes, table, signs = given.arrays
    axis, bits = given["axis"], given["bits"]
    (result,) = given.results
    out = np.zeros(result.shape, np.uint32)
    for before, after in _lines(result.shape, axis):
        line = [int(codes[(*before, i, *after)]) for i in range(codes.shape[axis])]
        for place in range(result.shape[axis]):
            code, word = divmod(place, table.shape[1])
            found = int(table[min(vector_code(line, code, bits), len(table) - 1), word])
            if signs.shape[axis]:
                marks = int(signs[(*before, place // 8, *after)])
                ones = sum((marks >> place % 8 + byte & 1) << byte for byte in range(0, 32, 8))
                found = (found ^ 127 * ones) + ones
            out[(*before, place, *after)] = found & 0xFFFFFFFF
    return [exactly(stored(out, result.dtype, result.shape))]


def _restored(value: float, scale: float, bias: float) -> Any:
    product = _single(multiplied(value, scale, F32))
    total = _single(added(product, bias, F32))
    return total.as_integer_ratio() if math.isfinite(total) and total else total
