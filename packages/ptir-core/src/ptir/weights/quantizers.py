"""**Table** of quantizers: how the codes of weights, scales and minima of a format are chosen.

All round to nearest; they differ in how scales are found. Formats of 32 inputs take them from the
extremes, as ggml's reference does, to the bit. Super-blocks and MXFP4 try a few scales of a group
and keep the one with the least error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptir.errors import QuantizationError
from ptir.types import BF16
from ptir.weights.encode import Codes, codes_for, encode, numbers_within
from ptir.weights.record import (
    Codebook,
    Integer,
    Numbers,
    PowerOfTwo,
    Quantity,
    WeightFormat,
)
from ptir.weights.words import BYTE, greatest

Array = NDArray[Any]
Quantizer = Callable[[WeightFormat, Array], Codes]
"""From weights f32[outputs, blocks, inputs] to the codes of a record's numbers."""
RANGE_TRIALS: Final = tuple(np.linspace(-1, 1, 11, dtype=np.float32).tolist())
"""By how many steps more or fewer the range of a group is divided, with a minimum."""
ALIKE: Final = 1e-6
"""Codes whose spread is no more than this share of their squares are one code, but for rounding."""
PEAK_TRIALS: Final = tuple(np.linspace(-0.9, 0.9, 5, dtype=np.float32).tolist())
"""The same without one."""


def quantize(format: WeightFormat, weights: Array) -> dict[str, Array]:
    """Weights f32[outputs, inputs] as the arrays of a format, each rounded to nearest.

    Raises ``QuantizationError`` for formats that have no quantizer, for rows that are not whole
    blocks, and for weights that are not finite or too large for the format's scales.
    """
    if format.name not in ROUNDERS:
        known = ", ".join(ROUNDERS)
        raise QuantizationError(f"{format.name} has no quantizer; {known} have: choose one of them")
    outputs, inputs = weights.shape
    if inputs % format.block:
        rule = f"rows of {inputs} are not whole blocks of {format.block}, as {format.name} has"
        raise QuantizationError(f"{rule}; choose another format")
    if not np.isfinite(weights).all():
        raise QuantizationError("a weight holds NaN or infinity; it cannot be quantized")
    blocks = np.ascontiguousarray(weights, np.float32).reshape(outputs, -1, format.block)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        return encode(format, ROUNDERS[format.name](format, blocks))


# --- one scale for a block ---


def _symmetric(format: WeightFormat, weights: Array) -> Codes:
    """The weight that is farthest from 0 becomes the lowest code, whose number no other mirrors."""
    scale = _peak(weights) / np.float32(_lowest(format.codes))
    return _rounded(format, weights, scale)


def _both_ways(format: WeightFormat, weights: Array) -> Codes:
    """The greatest magnitude becomes the greatest code; halves are rounded away from 0."""
    reading = format.codes.reading
    assert isinstance(reading, Integer)
    scale = np.abs(weights).max(-1, keepdims=True) / np.float32(reading.range(format.bits)[1])
    magnitude = np.abs(weights * _inverse(scale))
    whole = np.floor(magnitude)
    whole += magnitude - whole >= 0.5
    return {
        format.codes: codes_for(format.codes, np.copysign(whole, weights)),
        **_halves(format, scale, None),
    }


def _ranged(format: WeightFormat, weights: Array) -> Codes:
    """The least weight becomes the first code, the greatest one the last."""
    low, high = (of(-1, keepdims=True) for of in (weights.min, weights.max))
    scale = (high - low) / np.float32((1 << format.bits) - 1)
    numbers = np.floor((weights - low) * _inverse(scale) + np.float32(0.5))
    return {format.codes: codes_for(format.codes, numbers), **_halves(format, scale, low)}


def _rounded(format: WeightFormat, weights: Array, scale: Array) -> Codes:
    """Halves are rounded up, as ggml does by adding to what is positive then and cutting off."""
    lowest = np.float32(_lowest(format.codes))
    numbers = np.floor(weights * _inverse(scale) + (np.float32(0.5) - lowest)) + lowest
    return {format.codes: codes_for(format.codes, numbers), **_halves(format, scale, None)}


def _halves(format: WeightFormat, scale: Array, minimum: Array | None) -> Codes:
    """A scale, and perhaps a minimum, that are f16."""
    found = {_stored(format.value.scale)[0]: _half(format, scale)}
    if minimum is not None:
        found[_stored(format.value.minimum)[0]] = _half(format, minimum)
    return found


def _half(format: WeightFormat, numbers: Array) -> Array:
    """The codes of f16; raises ``QuantizationError`` where it has no such number."""
    codes = numbers.astype(np.float16)
    if not np.isfinite(codes).all():
        worst = float(np.abs(numbers).max())
        raise QuantizationError(
            f"{format.name} has scales in f16, at most 65504, and {worst:g} is needed: the weights"
            " are too large; store them as floats (ptir convert)"
        )
    return codes.view(np.uint16)


def to_words(format: WeightFormat, weights: Array) -> Codes:
    """The weight of greatest size is exact: the lowest of 4 bits, 127 of 8, times a bf16 scale."""
    zero = np.float32(1 << (format.bits - 1))
    peak = _peak(weights)
    scale = (np.abs(peak) / (zero - 1) if format.bits == BYTE else peak / -zero).astype(BF16.numpy)
    step = scale.astype(np.float32)
    ratio = np.divide(weights, step, out=np.zeros_like(weights), where=step != 0)
    codes = np.clip(np.rint(ratio) + zero, 0, greatest(format.bits)).astype(np.uint8)
    return {format.codes: codes, _stored(format.value.scale)[0]: scale.view(np.uint16)}


# --- scales of groups in a super-block ---


def _super_ranged(format: WeightFormat, weights: Array) -> Codes:
    """Groups with a scale and a minimum, both whole numbers times an f16 of the block."""
    grouped = _groups(format, weights)
    scale, minimum = _searched_range(grouped, (1 << format.bits) - 1)
    scales, scale = _super(format, format.value.scale, scale)
    minima, minimum = _super(format, format.value.minimum, -minimum)
    numbers = np.rint((grouped + minimum[..., None]) * _inverse(scale[..., None]))
    return {format.codes: _flat(format, numbers, weights), **scales, **minima}


def _super_symmetric(format: WeightFormat, weights: Array) -> Codes:
    """Groups with a scale, which is a whole number with a sign times an f16 of the block."""
    grouped = _groups(format, weights)
    scales, scale = _super(format, format.value.scale, _searched_peak(grouped, format.codes))
    numbers = np.rint(grouped * _inverse(scale[..., None]))
    return {format.codes: _flat(format, numbers, weights), **scales}


def _groups(format: WeightFormat, weights: Array) -> Array:
    return weights.reshape(*weights.shape[:2], -1, format.group)


def _flat(format: WeightFormat, numbers: Array, like: Array) -> Array:
    return codes_for(format.codes, numbers.reshape(like.shape))


def _super(format: WeightFormat, quantity: Quantity | None, wanted: Array) -> tuple[Codes, Array]:
    """Scales [outputs, blocks, groups] as codes, and what they stand for then."""
    whole, half = _stored(quantity)
    reading = whole.reading
    assert isinstance(reading, Integer)
    low, high = reading.range(whole.bits)
    factor = _peak(wanted) / np.float32(low if low < 0 else high)
    codes = _half(format, factor)
    factor = codes.view(np.float16).astype(np.float32)
    numbers = np.clip(np.rint(wanted * _inverse(factor)), low, high)
    return {whole: codes_for(whole, numbers), half: codes}, numbers * factor


def _searched_range(groups: Array, top: int) -> tuple[Array, Array]:
    """The scale and the minimum, 0 or less, of each group that give the least weighted error.

    For a trial's codes the best of both is a line through points, by least squares; what is
    larger has more weight.
    """
    weight = _weight(groups)
    low = np.minimum(groups.min(-1, keepdims=True), 0)
    span = groups.max(-1, keepdims=True) - low
    steps = (groups - low) * _inverse(span)
    plain = np.clip(np.rint(steps * np.float32(top)), 0, top) * (span / np.float32(top)) + low
    least = _sums(weight, np.square(groups - plain))
    scale, minimum = span[..., 0] / np.float32(top), low[..., 0]
    of_weight, of_value, of_square = (_sums(weight, one) for one in (None, groups, groups * groups))
    for trial in RANGE_TRIALS:
        codes = np.clip(np.rint(steps * np.float32(top + trial)), 0, top)
        weighted = weight * codes
        first, second, both = (_sums(weighted, one) for one in (None, codes, groups))
        spread = of_weight * second - first * first
        slope = (of_weight * both - of_value * first) / spread
        start = (second * of_value - first * both) / spread
        slope = np.where(start > 0, both / second, slope)
        start = np.minimum(start, 0)
        error = (
            of_square
            + slope * (slope * second - 2 * both + 2 * start * first)
            + start * (start * of_weight - 2 * of_value)
        )
        better = (error < least) & (spread > ALIKE * of_weight * second) & (slope > 0)
        least = np.where(better, error, least)
        scale = np.where(better, slope, scale)
        minimum = np.where(better, start, minimum)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _searched_peak(groups: Array, codes: Numbers) -> Array:
    """The scale of each group that gives the least weighted error, without a minimum."""
    lowest, highest = _lowest(codes), _lowest(codes) + (1 << codes.bits) - 1
    weight, step = _weight(groups), _inverse(_peak(groups))
    most, scale = np.zeros(groups.shape[:-1]), np.zeros(groups.shape[:-1])
    for trial in PEAK_TRIALS:
        numbers = np.clip(np.rint(groups * (step * np.float32(lowest + trial))), lowest, highest)
        weighted = weight * numbers
        both, second = _sums(weighted, groups), _sums(weighted, numbers)
        slope = both / second
        better = both * slope > most  # what least squares take off the error
        most, scale = np.where(better, both * slope, most), np.where(better, slope, scale)
    return scale.astype(np.float32)


def _weight(groups: Array) -> Array:
    """How much the error of each weight counts: its magnitude and the usual one of its group."""
    usual = np.sqrt(np.square(groups).mean(-1, keepdims=True))
    found: Array = np.abs(groups) + usual
    return found


def _sums(weighted: Array, values: Array | None) -> Array:
    """Sums over groups, in f64 from there on: differences of them are small."""
    found = weighted.sum(-1) if values is None else np.einsum("...i,...i->...", weighted, values)
    return np.asarray(found, np.float64)


# --- a power of two and a table ---


def _power_of_two(format: WeightFormat, weights: Array) -> Codes:
    """The power by which the greatest weight is in the upper half of the table, or half of it.

    The greatest entry is three quarters of the next power, so what is above is cut off; where
    that costs more than what the coarser scale rounds away, the coarser one is taken.
    """
    reading, scales = format.codes.reading, _stored(format.value.scale)[0]
    assert isinstance(reading, Codebook) and isinstance(scales.reading, PowerOfTwo)
    largest = np.frexp(max(reading.values))[1]
    peak = np.frexp(np.abs(weights).max(-1, keepdims=True))[1]
    entries = np.array(reading.values, np.float32)
    kept: tuple[Array, ...] = ()
    for power in (peak - largest, peak - largest + 1):
        scale = np.ldexp(np.float32(1), np.maximum(power, -scales.reading.bias)).astype(np.float32)
        codes = codes_for(format.codes, weights / scale)
        error = np.square(entries[codes] * scale - weights).sum(-1, keepdims=True)
        if kept:
            better = error < kept[0]
            codes, scale = np.where(better, codes, kept[1]), np.where(better, scale, kept[2])
        kept = error, codes, scale
    _, codes, scale = kept
    empty = ~weights.any(-1, keepdims=True)
    return {format.codes: codes, scales: codes_for(scales, np.where(empty, 0, scale))}


# --- shared ---


def _peak(weights: Array) -> Array:
    """The weight that is farthest from 0, with its sign, the first of equal ones."""
    place = np.abs(weights).argmax(-1, keepdims=True)
    return np.take_along_axis(weights, place, -1)


def _inverse(scale: Array) -> Array:
    """One over a scale; 0 where there is none, or where f32 has no such number."""
    found = np.float32(1) / scale
    return np.where(np.isfinite(found), found, np.float32(0))


def _stored(quantity: Quantity | None) -> tuple[Numbers, ...]:
    """The numbers that a scale or a minimum is the product of, those of groups first."""
    assert quantity is not None
    return numbers_within(quantity)


def _lowest(numbers: Numbers) -> int:
    assert isinstance(numbers.reading, Integer)
    return numbers.reading.range(numbers.bits)[0]


ROUNDERS: Final[dict[str, Quantizer]] = {
    "Q8_0": _both_ways,
    "Q4_0": _symmetric,
    "Q4_1": _ranged,
    "Q5_0": _symmetric,
    "Q5_1": _ranged,
    "Q4_K": _super_ranged,
    "Q5_K": _super_ranged,
    "Q6_K": _super_symmetric,
    "MXFP4": _power_of_two,
    "int8": to_words,
    "int4": to_words,
}
"""By the name of the format."""
