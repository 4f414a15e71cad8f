"""Weights quantized while they load: what the words and scales stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptir.errors import QuantizationError
from ptir.params import parted
from ptir.params.quantized import (
    QuantizedSource,
    quantization,
    quantized_names,
    round_to_nearest,
)
from ptir.params.source import ArraySource
from ptir.types import BF16, U32
from ptir.weights import FORMATS, QUANTIZERS

Array = np.ndarray[Any, Any]
each_format = pytest.mark.parametrize(
    "format", [FORMATS[name] for name in QUANTIZERS], ids=QUANTIZERS
)


def weight(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def decoded(words: Array, scale: Array, axis: int, bits: int, group: int) -> Array:
    """The weight, value by value, from the documented packing: low bits first."""
    words, scale = np.moveaxis(words, axis, -1), np.moveaxis(scale.astype(np.float64), axis, -1)
    per = 32 // bits
    size = words.shape[-1] * per
    result = np.empty((*words.shape[:-1], size))
    for i in range(size):
        value = (words[..., i // per].astype(np.int64) >> (i % per * bits)) & (2**bits - 1)
        result[..., i] = (value - 2 ** (bits - 1)) * scale[..., i // group]
    return np.moveaxis(result, -1, axis)


@each_format
@pytest.mark.parametrize("axis", [0, 1])
def test_every_weight_is_within_half_a_step(format: Any, axis: int) -> None:
    original = weight(64, 96)
    words, scale = round_to_nearest(original, axis, format)
    found = decoded(words, scale, axis, format.bits, format.group)
    step = np.repeat(np.abs(scale.astype(np.float64)), format.group, axis=axis)
    # 4 bits reach -8 but not +8, and a bf16 scale is off by up to 2**-9 of 128 steps
    slack = 1.0 + 8 * 2.0**-9 if format.bits == 4 else 0.5 + 128 * 2.0**-9
    assert (np.abs(found - original) <= step * (slack + 1e-6)).all()
    inner = np.abs(original) < 6 * step
    assert (np.abs(found - original)[inner] <= (step * 0.5 + 1e-6)[inner]).all()


@each_format
def test_a_group_of_zeros_stays_zero(format: Any) -> None:
    words, scale = round_to_nearest(np.zeros((32, 32), np.float32), 1, format)
    assert not decoded(words, scale, 1, format.bits, format.group).any()


def test_the_greatest_weight_of_a_group_is_the_end_of_four_bits() -> None:
    row = np.zeros((1, 32), np.float32)
    row[0, 5], row[0, 6] = 8.0, -4.0
    words, scale = round_to_nearest(row, 1, FORMATS["int4"])
    assert scale.astype(np.float32).tolist() == [[-1.0]]
    found = decoded(words, scale, 1, 4, 32)
    assert found[0, 5] == 8.0 and found[0, 6] == -4.0


def test_a_source_offers_the_parts_in_place_of_the_weight() -> None:
    source = ArraySource({"w": weight(64, 8), "b": weight(8)})
    quantized = QuantizedSource(source, FORMATS["int4"], {"w": 0})
    both = quantized_names("w", FORMATS["int4"])
    assert quantized.names() == ("b", both.words, both.scale)
    assert (quantized.type(both.words).dtype, quantized.type(both.words).shape) == (U32, (8, 8))
    assert (quantized.type(both.scale).dtype, quantized.type(both.scale).shape) == (BF16, (2, 8))
    assert quantized.read(both.words).shape == (8, 8)
    assert quantized.read("b").shape == (8,)


def test_what_cannot_be_quantized_is_refused() -> None:
    source = ArraySource({"w": weight(48, 8)})
    with pytest.raises(QuantizationError, match="groups of 32 inputs, which do not divide 48"):
        QuantizedSource(source, FORMATS["int8"], {"w": 0})
    with pytest.raises(QuantizationError, match="NaN or infinity"):
        round_to_nearest(np.full((1, 32), np.nan, np.float32), 1, FORMATS["int8"])
    with pytest.raises(QuantizationError, match="unknown quantization 'int5'"):
        quantization("int5")


def test_words_and_scales_cost_one_reading_of_the_weight() -> None:
    source = ArraySource({name: weight(64, 8) * n for n, name in enumerate("uvw", 1)})
    format = FORMATS["int8"]
    quantized = QuantizedSource(source, format, dict.fromkeys("uvw", 0))
    wanted = {name: round_to_nearest(source.read(name), 0, format) for name in "uvw"}
    source.counters.loads.clear()
    order = [(name, which) for which in range(2) for name in "uvw"]
    for name, which in [*order, ("v", 1), ("v", 0), ("v", 1)]:
        both = quantized_names(name, format)
        found = quantized.read((both.words, both.scale)[which])
        np.testing.assert_array_equal(found, wanted[name][which])
    assert source.counters.loads == {"u": 1, "v": 3, "w": 1}


@each_format
@pytest.mark.parametrize("axis", [0, 1])
def test_runs_of_outputs_on_several_threads_are_one_weight(
    format: Any, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parted, "_RUN", 3 * 64)  # three outputs, and one in the last run
    shape = (64, 13) if axis == 0 else (13, 64)
    source = QuantizedSource(ArraySource({"w": weight(*shape)}), format, {"w": axis})
    wanted = round_to_nearest(weight(*shape), axis, format)
    names = quantized_names("w", format)
    for name, array in zip((names.words, names.scale), wanted, strict=True):
        assert np.array_equal(source.read(name), array)
        assert source.type(name).shape == array.shape
