"""Codes as blocks and back, and quantizers: against ``gguf`` to the bit, or by their error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import example, given, settings
from hypothesis import strategies as st
from weight_arrays import Array, as_written, random_arrays

from ptir.errors import QuantizationError
from ptir.params.quantized import round_to_nearest
from ptir.types import BF16, F16
from ptir.weights import FORMATS, QUANTIZERS, WeightFormat
from ptir.weights.decode import codes_of, decode, raw_bytes
from ptir.weights.encode import codes_for, encode, numbers_within
from ptir.weights.quantizers import ROUNDERS, quantize
from ptir.weights.record import FLOATS, Codebook, Integer

EXACT = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
SEARCHED = {"Q4_K": 0.94, "Q5_K": 0.965, "Q6_K": 0.97}
"""What a search leaves of the error of plain rounding, at most; least squares alone leave more."""
SHARED = [one.name for one in FORMATS.values() if any(a.blocks * a.outputs > 1 for a in one.arrays)]
OWN = [name for name in FORMATS if name not in SHARED]


@pytest.mark.parametrize("name", OWN)
def test_codes_of_random_bytes_are_put_back_where_they_were(name: str) -> None:
    format = FORMATS[name]
    arrays = random_arrays(format, 3, 4, np.random.default_rng(5))
    if "blocks" in arrays:
        arrays["blocks"] = as_written(format, arrays["blocks"])
    raw = raw_bytes(format, arrays)
    codes = {one: codes_of(one, raw) for one in numbers_within(format.value)}
    again = encode(format, codes)
    for one in format.arrays:
        assert again[one.name].dtype == arrays[one.name].dtype
        np.testing.assert_array_equal(
            again[one.name].view(np.uint8), arrays[one.name].view(np.uint8)
        )


@pytest.mark.parametrize("name", SHARED)
def test_blocks_that_share_entries_are_refused(name: str) -> None:
    format = FORMATS[name]
    codes = {one: np.zeros((2, 3, 1), np.uint8) for one in numbers_within(format.value)}
    with pytest.raises(ValueError, match=f"{name}: blocks share entries of 'scale'"):
        encode(format, codes)


def test_a_block_needs_all_its_numbers() -> None:
    format = FORMATS["Q4_1"]
    with pytest.raises(ValueError, match="Q4_1: no codes came for Numbers"):
        encode(format, {format.codes: np.zeros((1, 1, 32), np.uint8)})


def test_a_code_is_that_of_the_nearest_number() -> None:
    for name in ("IQ4_NL", "MXFP4", "NVFP4", "nf4"):
        codes = FORMATS[name].codes
        assert isinstance(codes.reading, Codebook)
        table = np.array(codes.reading.values, np.float64)
        wanted = np.linspace(table.min() * 1.1, table.max() * 1.1, 997)
        found = np.abs(table[codes_for(codes, wanted)] - wanted)
        np.testing.assert_array_equal(found, np.abs(table - wanted[:, None]).min(-1))
        np.testing.assert_array_equal(table[codes_for(codes, table)], table)
    halves = codes_for(FORMATS["MXFP4"].codes, np.array([-0.5, -2.5, 0.0, 0.5, 2.5, 99.0]))
    assert halves.tolist() == [0, 10, 0, 0, 2, 7]  # halfway is nearer to 0, and 0 has no sign
    with pytest.raises(ValueError, match="f16 alone is"):
        codes_for(numbers_within(FORMATS["NVFP4"].value)[1], np.ones(1))


def awkward(seed: int, rows: int, inputs: int, least: int = -9) -> Array:
    """Rows of many sizes: random, halves of steps, alike, zeros, of one sign, few large ones."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((rows, inputs)).astype(np.float32)
    found *= np.float32(10.0) ** rng.integers(least, 3, (rows, 1)).astype(np.float32)
    for row, kind in enumerate(rng.integers(0, 7, rows)):
        if kind == 1:
            found[row] = np.round(rng.standard_normal(inputs) * 8) / 16
        elif kind == 2:
            found[row] = found[row, 0]
        elif kind == 3:
            found[row, rng.random(inputs) < 0.9] = 0
        elif kind == 4:
            found[row] = np.abs(found[row]) * rng.choice([-1, 1])
        elif kind == 5:
            found[row] = rng.choice(found[row, :2], inputs) * rng.choice([-1, 1], inputs)
        elif kind == 6:
            found[row, rng.integers(inputs)] *= 100
    return found


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 9), blocks=st.integers(1, 5))
def test_blocks_equal_those_of_gguf_bit_for_bit(
    name: str, seed: int, rows: int, blocks: int
) -> None:
    weights = awkward(seed, rows, 32 * blocks)
    wanted = quants.quantize(weights, GGMLQuantizationType[name])
    np.testing.assert_array_equal(quantize(FORMATS[name], weights)["blocks"], wanted)


def decoded(name: str, blocks: Array) -> Array:
    """What somebody else's code reads."""
    return np.asarray(quants.dequantize(blocks, GGMLQuantizationType[name]))


def rounded_by_groups(format: WeightFormat, weights: Array) -> Array:
    """Plain rounding of each group to as many steps, its scale and minimum kept as f64."""
    groups = weights.astype(np.float64).reshape(-1, format.group)
    top = (1 << format.bits) - 1
    if format.value.minimum is None:
        peak = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
        low, scale = 0.0, peak / -((top + 1) // 2)
        first, last = -((top + 1) // 2), top // 2
    else:
        low = np.minimum(groups.min(-1, keepdims=True), 0)
        scale, first, last = (groups.max(-1, keepdims=True) - low) / top, 0, top
    steps = np.divide(groups - low, scale, out=np.zeros_like(groups), where=scale != 0)
    return (np.clip(np.rint(steps), first, last) * scale + low).reshape(weights.shape)


def deviation(found: Array, weights: Array) -> float:
    return float(np.sqrt(np.square(found.astype(np.float64) - weights).mean()))


DRAWN: dict[str, Any] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "heavy tails": lambda rng, size: rng.standard_t(4, size),
    "uniform": lambda rng, size: rng.uniform(-1, 1, size),
    "moved": lambda rng, size: rng.standard_normal(size) + rng.standard_normal((size[0], 1)),
    "small": lambda rng, size: rng.standard_normal(size) * 0.02,
}


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("name", SEARCHED)
def test_super_blocks_are_closer_than_plain_rounding_with_scales_as_floats(
    name: str, drawn: str
) -> None:
    """A bound that rounding scales to 6 or 8 bits makes harder; the search gains more than that."""
    format = FORMATS[name]
    weights = DRAWN[drawn](np.random.default_rng(3), (40, 1024)).astype(np.float32)
    found = decoded(name, quantize(format, weights)["blocks"])
    plain = deviation(rounded_by_groups(format, weights), weights)
    assert deviation(found, weights) < SEARCHED[name] * plain


@pytest.mark.parametrize("name", SEARCHED)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=446)
@example(seed=552)
@example(seed=246)
@example(seed=236940)
def test_awkward_super_blocks_stay_near_plain_rounding(name: str, seed: int) -> None:
    """Row by row: groups of very different sizes share a scale: at most half a step of it."""
    format = FORMATS[name]
    weights = awkward(seed, 12, 256, least=1)  # f16 has such scales to 11 bits
    found = decoded(name, quantize(format, weights)["blocks"])
    steps = 128 if name == "Q6_K" else 63
    for got, wanted in zip(found, weights, strict=True):
        plain = deviation(rounded_by_groups(format, wanted[None])[0], wanted)
        reach = 2 * float(np.abs(wanted).max())
        subnormal = 2.0**-25 * 128 * 32  # half a step of f16 times the greatest codes
        assert deviation(got, wanted) <= 1.02 * plain + 0.5 * reach / steps + subnormal


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 9))
def test_mxfp4_is_never_farther_off_than_gguf(seed: int, rows: int) -> None:
    weights = awkward(seed, rows, 96)
    kind = GGMLQuantizationType.MXFP4
    found = decoded("MXFP4", quantize(FORMATS["MXFP4"], weights)["blocks"])
    wanted = decoded("MXFP4", quants.quantize(weights, kind))
    for ours, theirs, true in zip(
        *(one.reshape(-1, 32) for one in (found, wanted, weights)), strict=True
    ):
        assert deviation(ours, true) <= deviation(theirs, true) * (1 + 1e-6)


def test_mxfp4_takes_the_coarser_power_where_cutting_off_costs_more() -> None:
    weights = np.zeros((2, 32), np.float32)
    weights[0, :3] = 7.9, -7.9, 0.5  # 8, -8 and 0 are nearer than 6, -6 and 0.5
    weights[1, :3] = 6.9, 0.5, 1.5  # 6, 0.5 and 1.5 than 8 (or 6), 0 and 1 (or 2)
    found = decode(FORMATS["MXFP4"], quantize(FORMATS["MXFP4"], weights))
    assert found[0, :3].tolist() == [8.0, -8.0, 0.0]
    assert found[1, :3].tolist() == [6.0, 0.5, 1.5]


@pytest.mark.parametrize("name", [*SEARCHED, "MXFP4"])
def test_every_weight_gets_the_nearest_of_its_block_s_numbers(name: str) -> None:
    """With the scales as they are stored, not as they were looked for."""
    format = FORMATS[name]
    weights = awkward(11, 12, 512)
    arrays = quantize(format, weights)
    raw = raw_bytes(format, arrays)
    codes = {one: codes_of(one, raw) for one in numbers_within(format.value)}
    off = np.abs(decode(format, arrays) - weights)
    for code in range(1 << format.bits):
        others = {**codes, format.codes: np.full_like(codes[format.codes], code)}
        other = np.abs(decode(format, encode(format, others)) - weights)
        assert (off <= other * (1 + 1e-5) + 1e-30).all()


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_0", "MXFP4"])
def test_blocks_of_a_quantizer_come_back_from_their_numbers(name: str) -> None:
    """Where a scale follows from the greatest weight alone. With a minimum it is a difference."""
    format = FORMATS[name]
    weights = DRAWN["normal"](np.random.default_rng(2), (64, 256)).astype(np.float32)
    blocks = quantize(format, weights)
    again = quantize(format, decode(format, blocks))
    np.testing.assert_array_equal(again["blocks"], blocks["blocks"])


@pytest.mark.parametrize("name", ROUNDERS)
def test_nothing_but_zeros_stays_zeros(name: str) -> None:
    format = FORMATS[name]
    found = decode(format, quantize(format, np.zeros((2, 512), np.float32)))
    np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize("name", ROUNDERS)
def test_rows_are_quantized_each_for_itself(name: str) -> None:
    format = FORMATS[name]
    weights = awkward(4, 6, 256)
    whole = quantize(format, weights)
    for row in range(6):
        for name, alone in quantize(format, weights[row : row + 1]).items():
            np.testing.assert_array_equal(alone[0], whole[name][row])


REFUSED: dict[str, tuple[str, Array, str]] = {
    "nan": ("Q4_K", np.full((1, 256), np.nan, np.float32), "a weight holds NaN or infinity"),
    "infinity": ("Q8_0", np.full((1, 32), -np.inf, np.float32), "a weight holds NaN or infinity"),
    "large": (
        "Q4_0",
        np.full((1, 32), 1e6, np.float32),
        "Q4_0 has scales in f16, at most 65504, and 125000 is needed: the weights are too large",
    ),
    "large minimum": ("Q5_1", np.full((1, 32), -1e6, np.float32), "and 1e[+]06 is needed"),
    "rows": ("Q6_K", np.zeros((1, 320), np.float32), "rows of 320 are not whole blocks of 256"),
    "format": ("IQ2_XS", np.zeros((1, 256), np.float32), "IQ2_XS has no quantizer; Q8_0, Q4_0,"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_quantized_is_refused(case: str) -> None:
    name, weights, message = REFUSED[case]
    with pytest.raises(QuantizationError, match=message):
        quantize(FORMATS[name], weights)


def test_a_large_super_block_is_refused() -> None:
    with pytest.raises(QuantizationError, match="Q6_K has scales in f16"):
        quantize(FORMATS["Q6_K"], np.full((1, 256), 1e9, np.float32))


def test_every_quantizer_s_codes_fit_its_records() -> None:
    """What the table relies on: whole numbers, halves for scales, or a table and a power."""
    for name in ROUNDERS:
        weights, *scales = numbers_within(FORMATS[name].value)
        assert isinstance(weights.reading, Integer | Codebook)
        halves = {FLOATS[BF16 if name in QUANTIZERS else F16]}
        assert name == "MXFP4" or any(one.reading in halves for one in scales)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_words_of_a_quantizer_are_those_of_a_model_that_loads(name: str) -> None:
    """To the bit, whichever axis the inputs lie along."""
    format, weights = FORMATS[name], awkward(5, 6, 256)
    found = quantize(format, weights)
    for axis, rows in ((1, weights), (0, weights.T)):
        words, scale = round_to_nearest(rows, axis, format)
        np.testing.assert_array_equal(np.moveaxis(words, axis, -1), found["words"])
        np.testing.assert_array_equal(np.moveaxis(scale, axis, -1), found["scale"])
