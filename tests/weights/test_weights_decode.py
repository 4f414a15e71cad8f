"""Formats in arrays of their own decoded from their records, against outsiders; what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from weight_arrays import Array, random_arrays

from ptir.ops.numerics.quantized import dequantize
from ptir.types import BF16, F16, F32, U8, U32, DType
from ptir.weights import FORMATS, PACKED_BITS, QUANTIZERS, FusedFormat, WeightFormat, affine
from ptir.weights.decode import decode, decode_fused
from ptir.weights.formats import elements
from ptir.weights.record import (
    EVERY,
    Codebook,
    Digit,
    Grid,
    Integer,
    Numbers,
    Plane,
    Quantity,
    Run,
    Signs,
    SmallFloat,
    StoredArray,
)
from ptir.weights.words import BITS

RNG = np.random.default_rng(7)
OUTPUTS, BLOCKS = 6, 3


def same_bits(found: Array, wanted: Array) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), wanted.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_own_formats_decode_as_the_op_does(name: str) -> None:
    format = FORMATS[name]
    arrays = random_arrays(format, OUTPUTS, BLOCKS, RNG)
    assert format.zero is not None
    bias = arrays["scale"].astype(np.float32) * np.float32(-format.zero)
    how = {"axis": 1, "group": format.group, "bits": format.bits}
    same_bits(decode(format, arrays), dequantize(arrays["words"], arrays["scale"], bias, **how))


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("group", [1, 12, 32, 40])
@pytest.mark.parametrize("bits", BITS)
def test_affine_formats_decode_as_the_op_does(bits: int, group: int, dtype: DType) -> None:
    """All that ``dequantize`` takes is a record: 3 bits over words, groups that end within one."""
    format = affine("any", bits, group, scale=dtype, bias=dtype)
    arrays = random_arrays(format, OUTPUTS, BLOCKS, RNG)
    wanted = dequantize(*arrays.values(), axis=1, group=group, bits=bits)
    same_bits(decode(format, arrays), wanted)


TABLE = """
    -1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635
    -0.18477343022823334 -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725
    0.24611230194568634 0.33791524171829224 0.44070982933044434 0.5626170039176941
    0.7229568362236023 1.0
"""
"""The sixteen values of NormalFloat4 as QLoRA's appendix lists them."""


def test_nf4_takes_the_upper_half_of_a_byte_first() -> None:
    table = np.array(TABLE.split(), np.float32)
    codes = np.arange(16, dtype=np.uint8)
    numbers = np.concatenate([codes, codes[::-1], codes, codes])
    packed = (numbers[::2] << 4 | numbers[1::2])[None]
    found = decode(FORMATS["nf4"], {"codes": packed, "absmax": np.float32([[1.5]])})
    same_bits(found, table[numbers][None] * np.float32(1.5))


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_every_float_of_8_bits_is_the_one_of_ml_dtypes(name: str) -> None:
    codes = np.arange(256, dtype=np.uint8)[None]
    dtype = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}[name]
    wanted = codes.view(dtype).astype(np.float32)
    found = decode(FORMATS[name], {"codes": codes, "scale": np.float32([[1.0]])})
    known = ~np.isnan(wanted)
    assert (np.isnan(found) == ~known).all()
    same_bits(found[known], wanted[known])


def test_blocks_of_floats_share_a_scale_across_outputs() -> None:
    format = FORMATS["f8e4m3-blocks"]
    codes = RNG.integers(0, 120, (200, 256), np.uint8)
    scale = RNG.standard_normal((2, 2)).astype(np.float32)
    each = np.repeat(np.repeat(scale, 128, 0)[:200], 128, 1)
    wanted = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * each
    same_bits(decode(format, {"codes": codes, "scale": scale}), wanted)


def test_mxfp4_is_the_product_of_ml_dtypes_floats() -> None:
    """Every scale but the one that is none, every code, the first of two in the lower half."""
    scales = np.arange(256, dtype=np.uint8)[:, None]
    codes = RNG.integers(0, 256, (256, 16), np.uint8)
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(256, 32)
    with np.errstate(over="ignore", invalid="ignore"):
        small = nibbles.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        wanted = small * scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    found = decode(FORMATS["mxfp4"], {"codes": codes, "scales": scales})
    same_bits(found[:255], wanted[:255])
    assert np.isnan(found[255]).all() and np.isnan(wanted[255]).all()


def test_scales_that_are_quantized_themselves_are_a_record() -> None:
    """nf4 with double quantization: a scale from a table, times one of 256, plus one of all."""
    table = np.linspace(-1, 1, 256).astype(np.float32)
    absmax = Numbers((Plane("absmax", 8, 0, (Digit(1, 8),)),), Codebook(tuple(table.tolist())), 64)
    arrays = (
        *(StoredArray("codes", U8, 32), StoredArray("absmax", U8, 1)),
        StoredArray("nested", F32, 1, blocks=2),
        StoredArray("offset", F32, 1, outputs=EVERY, blocks=EVERY),
    )
    nested, offset = (Quantity(elements(name, F32, 1, 64)) for name in ("nested", "offset"))
    value = Quantity(FORMATS["nf4"].codes, Quantity(absmax, nested, offset))
    format = WeightFormat("nf4-double", 64, arrays, value)
    given = random_arrays(format, 4, 3, RNG)
    assert [given[name].shape for name in ("nested", "offset")] == [(4, 2), (1, 1)]
    each = np.repeat(given["nested"], 2, 1)[:, :3]
    scale = table[given["absmax"]] * each + given["offset"]
    wanted = decode(FORMATS["nf4"], {"codes": given["codes"], "absmax": scale})
    same_bits(decode(format, given), wanted)


def test_orders_of_others_are_records() -> None:
    """AWQ's words hold the values 0 2 4 6 1 3 5 7 of eight, lowest bits first."""
    plane = Plane("words", 4, 0, (Digit(4, 4), Digit(2, 16)))
    format = WeightFormat(
        "awq", 8, (StoredArray("words", U32, 1),), Quantity(Numbers((plane,), Integer()))
    )
    word = sum(value << 4 * place for place, value in enumerate((0, 2, 4, 6, 1, 3, 5, 7)))
    found = decode(format, {"words": np.array([[word]], np.uint32)})
    assert found.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_a_fused_weight_is_its_runs_one_after_the_other() -> None:
    names, outputs = ("Q4_K", "Q6_K", "Q8_0"), (3, 1, 2)
    format = FusedFormat(
        tuple(Run(FORMATS[name], n) for name, n in zip(names, outputs, strict=True))
    )
    arrays = [
        random_arrays(run.format, run.outputs, 256 // run.format.block, RNG) for run in format.runs
    ]
    found = decode_fused(format, arrays)
    assert found.shape == (format.outputs, 256) == (6, 256)
    same_bits(found[3:4], decode(FORMATS["Q6_K"], arrays[1]))


UNREAD = {"NVFP4": {7, 15, 23, 31}}
"""Bits of a block that stand for nothing: the signs of scales that have none."""


@pytest.mark.parametrize("name", FORMATS)
def test_every_bit_of_a_block_is_read_once(name: str) -> None:
    """By one number, or by weights that share a code."""
    format = FORMATS[name]
    used: dict[str, list[int]] = {one.name: [] for one in format.arrays}
    planes = {
        plane
        for quantity in format.value.within()
        if isinstance(quantity.numbers, Numbers)
        for plane in quantity.numbers.planes
    }
    for plane in planes:
        used[plane.array] += [p + n for p in set(plane.places()) for n in range(plane.bits)]
    for one in format.arrays:
        assert sorted(used[one.name]) == sorted(set(range(one.bits)) - UNREAD.get(name, set()))


def test_formats_say_what_others_ask_them() -> None:
    found = {name: (one.bits, one.group, one.zero) for name, one in FORMATS.items()}
    assert {name: found[name] for name in ("int4", "int8", "Q4_0", "Q6_K", "Q4_K", "nf4")} == {
        "int4": (4, 32, 8.0),
        "int8": (8, 32, 128.0),
        "Q4_0": (4, 32, 8.0),
        "Q6_K": (6, 16, 32.0),
        "Q4_K": (4, 32, None),
        "nf4": (4, 64, None),
    }
    assert FORMATS["Q4_K"].stored_bits == 4.5 and FORMATS["int4"].stored_bits == 4.5
    assert PACKED_BITS == (4, 8) and QUANTIZERS == ("int8", "int4")


NIBBLES = Plane("codes", 4, 0, (Digit(32, 4),))
HELD = (StoredArray("codes", U8, 16), StoredArray("scale", F32, 1))
CODES = Numbers((NIBBLES,), Integer())


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            Numbers((replace(NIBBLES, array="words"),), Integer()),
            "'words' is not one of codes, scale",
        ),
        (
            Numbers((replace(NIBBLES, order=(Digit(16, 4),)),), Integer()),
            "a plane has 16 numbers; a block of 32 has 32",
        ),
        (Numbers((NIBBLES,), Integer(), 2), "a plane has 32 numbers; a block of 32 has 16"),
        (
            Numbers((replace(NIBBLES, first=4),), Integer()),
            "bits 4 to 131 are not in the 128 of 'codes'",
        ),
        (
            Numbers((NIBBLES,), Codebook((0.0, 1.0))),
            "a codebook of 2 numbers for 4 bits; 16 are needed",
        ),
        (
            Numbers((NIBBLES,), Grid("iq1", 2048, 8, Signs.OWN)),
            "a grid of 2048 entries for 4 bits; 8 are needed",
        ),
        (Numbers((NIBBLES,), SmallFloat(4, 3, 7)), "a float of 8 bits is read from 4"),
        (
            Numbers((Plane("scale", 16, 0, (Digit(1, 32),)),), Integer(), 32),
            "'scale' is f32; its elements are read whole, as such",
        ),
    ],
)
def test_records_that_do_not_fit_are_refused(numbers: Numbers, message: str) -> None:
    with pytest.raises(ValueError, match=f"^weight format mine: {message}$"):
        WeightFormat("mine", 32, HELD, Quantity(numbers))


def test_arrays_of_another_shape_are_refused() -> None:
    arrays: dict[str, Any] = {"codes": np.zeros((2, 64), np.uint8), "absmax": np.zeros((2, 1))}
    message = r"nf4: absmax is float64\[2, 1\]; f32\[2, 2\] is needed for 2 outputs of 2 blocks"
    with pytest.raises(ValueError, match=message):
        decode(FORMATS["nf4"], arrays)
