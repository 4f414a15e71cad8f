"""Affine quantization against Python's exact numbers, and packed bits against one big integer."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation import evaluate
from ptir.ir.graph import freeze, source
from ptir.ops import numerics as xp
from ptir.ops.record import OPS
from ptir.types import BF16, F16, F32, TensorType, dtype_of
from ptir.weights.words import BITS, words_for
from word_planes import bit_places, value_of

fast = settings(max_examples=100)
FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)
AWKWARD = (0.0, -0.0, 0.5, 1.0, -1.5, 2.5, 3.0, 100.0, -7.0, math.inf, -math.inf, math.nan)


def f32(value):
    """A rational rounded once to f32, half to even."""
    if value == 0:
        return 0.0
    exponent = max(-149, math.frexp(float(value))[1] - 24)
    return float(round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent)


def rounded(x, scale, bias, bits):
    """One quantized value in exact arithmetic with a rounding after each step."""
    top = 2**bits - 1
    if scale == 0 or math.isnan(x) or math.isnan(scale) or math.isnan(bias):
        return 0
    if math.isinf(x) or math.isinf(scale) or math.isinf(bias):
        with np.errstate(all="ignore"):
            ratio = float((np.float32(x) - np.float32(bias)) / np.float32(scale))
        return (
            0
            if math.isnan(ratio)
            else min(
                top, max(0, round(ratio) if abs(ratio) < 999 else int(math.copysign(999, ratio)))
            )
        )
    difference = f32(Fraction(x) - Fraction(bias))
    return min(top, max(0, round(Fraction(f32(Fraction(difference) / Fraction(scale))))))


def streamed(line, bits):
    """The words of a line of values: cut from one integer that holds all of them."""
    whole = 0
    for i, value in enumerate(line):
        for bit, place in enumerate(bit_places(i, bits)):
            whole |= (int(value) >> bit & 1) << place
    return [(whole >> (32 * w)) & 0xFFFFFFFF for w in range(words_for(len(line), bits))]


@st.composite
def cases(draw):
    """An operand, its scale and bias, and attributes; scales are shared along some axes."""
    rank = draw(st.integers(1, 3))
    axis = draw(st.integers(0, rank - 1))
    group, groups = draw(st.sampled_from([1, 2, 5, 8, 16])), draw(st.integers(0, 5))
    shape = [draw(st.integers(0, 3)) for _ in range(rank)]
    shape[axis] = group * groups
    scales = [draw(st.sampled_from([1, n])) for n in shape]
    scales[axis] = groups

    def array(sizes, values):
        size = math.prod(sizes)
        flat = draw(st.lists(values, min_size=size, max_size=size))
        dtype = draw(st.sampled_from(FLOATS))
        return np.array(flat, np.float32).astype(dtype).reshape(sizes)

    numbers = st.sampled_from(AWKWARD) | st.integers(-80, 80).map(lambda n: n / 8)
    x = array(shape, numbers)
    scale = array(scales, st.sampled_from([0.0, 0.1, -0.3, 1.0, 0.5, 2.0, math.inf, math.nan]))
    bias = array(
        [draw(st.sampled_from([1, n])) if a != axis else groups for a, n in enumerate(shape)],
        numbers,
    )
    how = {"axis": axis, "group": group, "bits": draw(st.sampled_from(BITS))}
    return x, scale, bias, how


def spread(scale, shape, how):
    repeated = np.repeat(scale.astype(np.float64), how["group"], axis=how["axis"])
    return np.broadcast_to(repeated, shape)


def decomposed(name, *operands, **attributes):
    record = OPS[name]
    inputs = [source(TensorType(dtype_of(x), x.shape)) for x in operands]
    block = freeze([record.decomposition(*inputs, **record.bind(attributes))], inputs)
    with np.errstate(all="ignore"):
        return evaluate(block, operands)[0]


def same(found, wanted):
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


@fast
@given(cases())
def test_quantize_rounds_each_step_once_and_packs_a_bit_stream(case):
    x, scale, bias, how = case
    steps, starts = (spread(a, x.shape, how) for a in (scale, bias))
    values = np.zeros(x.shape, np.int64)
    for at in np.ndindex(x.shape):
        values[at] = rounded(float(x[at]), float(steps[at]), float(starts[at]), how["bits"])
    lines = np.moveaxis(values, how["axis"], -1)
    words = np.zeros((*lines.shape[:-1], words_for(lines.shape[-1], how["bits"])), np.uint32)
    for at in np.ndindex(lines.shape[:-1]):
        words[at] = streamed(lines[at], how["bits"])
    wanted = np.moveaxis(words, -1, how["axis"])
    same(xp.quantize(x, scale, bias, **how), wanted)
    same(decomposed("quantize", x, scale, bias, **how), wanted)


@fast
@given(cases(), st.sampled_from([F32, F16, BF16]), st.randoms(use_true_random=False))
def test_dequantize_reads_the_stream_and_rounds_each_step(case, dtype, random):
    x, scale, bias, how = case
    axis, bits, size = how["axis"], how["bits"], x.shape[how["axis"]]
    packed = [*x.shape]
    packed[axis] = words_for(size, bits)
    flat = [random.getrandbits(32) for _ in range(math.prod(packed))]
    words = np.array(flat, np.uint32).reshape(packed)
    lines = np.moveaxis(words, axis, -1)
    values = np.zeros((*lines.shape[:-1], size), np.int64)
    for at in np.ndindex(lines.shape[:-1]):
        whole = sum(int(word) << (32 * w) for w, word in enumerate(lines[at]))
        values[at] = [value_of(whole, i, bits) for i in range(size)]
    values = np.moveaxis(values, -1, axis)
    steps, starts = (spread(a, x.shape, how) for a in (scale, bias))
    with np.errstate(all="ignore"):
        product = (values * steps).astype(np.float32)  # exact in f64, so rounded once
        wanted = (product.astype(np.float64) + starts).astype(np.float32).astype(dtype.numpy)
    for found in (
        xp.dequantize(words, scale, bias, dtype=dtype, **how),
        decomposed("dequantize", words, scale, bias, dtype=dtype, **how),
    ):
        same(found, wanted)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("axis", [0, 1])
def test_every_value_survives_a_round_trip(bits, axis):
    values = np.random.default_rng(bits).integers(0, 2**bits, (64, 96)).astype(np.float32)
    shape = [64, 96]
    shape[axis] //= 32
    scale, bias = np.full(shape, 0.25, np.float32), np.full(shape, -3, np.float32)
    how = {"axis": axis, "group": 32, "bits": bits}
    words = xp.quantize(values * np.float32(0.25) - np.float32(3), scale, bias, **how)
    assert words.nbytes * 8 == values.size * bits
    same(xp.dequantize(words, scale, bias, **how), values * np.float32(0.25) - np.float32(3))


@pytest.mark.parametrize("bits", BITS)
def test_views_with_any_strides_are_read(bits):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6, 64)).astype(np.float32)
    scale, bias = np.full((6, 2), 0.1, np.float32), np.full((6, 2), -0.2, np.float32)
    how = {"axis": 1, "group": 32, "bits": bits}
    words = xp.quantize(x, scale, bias, **how)
    strided = xp.quantize(np.asfortranarray(x), np.asfortranarray(scale), bias, **how)
    same(strided, words)
    twice = np.repeat(words, 2, axis=1)[:, ::2]
    same(xp.dequantize(twice, scale, bias, **how), xp.dequantize(words, scale, bias, **how))
