"""Ranges of groups, quantized weights and the linear map over them, against float64 NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ptir.functional as F
from functional.evaluate import f32, run
from ptir.weights.words import BITS as BITS_OF_VALUES
from together import together
from word_planes import value_of

BITS = pytest.mark.parametrize("bits", BITS_OF_VALUES)


def wide(x):
    return np.asarray(x, np.float64)


def packed(weight, bits, group):
    """Words, scale and bias of a weight."""
    scale, bias = run(F.affine_range, weight, bits=bits, group=group)
    return run(F.quantize, weight, scale, bias, bits=bits, group=group), scale, bias


@BITS
@pytest.mark.parametrize(
    ("shape", "axis", "group"), [((6, 64), -1, 32), ((64, 5), 0, 16), ((2, 3, 8), 1, 3)]
)
def test_the_range_of_a_group_runs_from_its_least_to_its_greatest(bits, shape, axis, group) -> None:
    x = f32(*shape)
    scale, bias = run(F.affine_range, x, bits=bits, group=group, axis=axis)
    lines = np.moveaxis(wide(x), axis, -1)
    groups = lines.reshape(*lines.shape[:-1], -1, group)
    np.testing.assert_array_equal(np.moveaxis(bias, axis, -1), groups.min(-1))
    top = np.moveaxis(wide(bias) + wide(scale) * (2**bits - 1), axis, -1)
    np.testing.assert_allclose(top, groups.max(-1), atol=1e-6)


@BITS
@pytest.mark.parametrize("axis", [0, 1])
def test_quantizing_is_off_by_at_most_half_a_step(bits, axis) -> None:
    x = f32(64, 96)
    how = {"bits": bits, "group": 32, "axis": axis}
    scale, bias = run(F.affine_range, x, **how)
    words = run(F.quantize, x, scale, bias, **how)
    assert words.dtype == np.uint32 and words.size * 32 == x.size * bits
    found = run(F.dequantize, words, scale, bias, **how)
    half = np.repeat(wide(scale), 32, axis=axis) / 2
    assert (np.abs(wide(found) - x) <= half * 1.0001 + 1e-6).all()
    assert np.abs(wide(found) - x).max() > 0.9 * half.min()


def test_equal_elements_come_back_exactly() -> None:
    x = np.full((2, 32), np.float32(0.1)) * np.array([[1], [-3]], np.float32)
    how = {"bits": 4, "group": 16}
    words, scale, bias = packed(x, **how)
    assert not scale.any() and not words.any()
    np.testing.assert_array_equal(run(F.dequantize, words, scale, bias, **how), x)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_dequantize_gives_the_element_type_asked_for(dtype) -> None:
    words, scale, bias = packed(f32(3, 32), 4, 32)
    found = run(F.dequantize, words, scale, bias, bits=4, group=32, dtype=dtype)
    whole = run(F.dequantize, words, scale, bias, bits=4, group=32)
    names = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
    np.testing.assert_array_equal(found, whole.astype(names[dtype]))


@together("shape")
@BITS
@pytest.mark.parametrize("shape", [(64,), (1, 64), (0, 64), (2, 3, 64)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("storage", [np.float32, np.float16])
def test_quantized_linear_is_linear_in_the_dequantized_weight(bits, shape, biased, storage) -> None:
    x, weight, bias = f32(*shape), f32(7, 64, seed=1), f32(7, seed=2)
    words, scale, starts = packed(weight, bits, 16)
    scale, starts = scale.astype(storage), starts.astype(storage)
    rows = np.zeros((7, 64))
    for row, at in np.ndindex(7, 64):
        stream = sum(int(word) << (32 * w) for w, word in enumerate(words[row]))
        value = value_of(stream, at, bits)
        rows[row, at] = value * wide(scale)[row, at // 16] + wide(starts)[row, at // 16]
    operands = (x, words, scale, starts, bias) if biased else (x, words, scale, starts)
    found = run(F.quantized_linear, *operands, bits=bits, group=16)
    wanted = wide(x) @ rows.T + (bias if biased else 0)
    bound = 70 * 2.0**-24 * (np.abs(wide(x)) @ (np.abs(rows.T) + np.abs(wide(starts)).max()) + 3)
    assert found.dtype == np.float32 and found.shape == wanted.shape
    assert (np.abs(found - wanted) <= bound).all()
