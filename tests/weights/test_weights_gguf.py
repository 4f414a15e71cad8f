"""GGUF's blocks decoded from their records, against the package ``gguf``, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_arrays import as_written, random_arrays, witnessed

from ptir.weights import FORMATS
from ptir.weights.decode import decode
from ptir.weights.gguf import GGUF
from ptir.weights.grids import POINTS, grid
from ptir.weights.record import Grid

each_format = pytest.mark.parametrize("name", [one.name for one in GGUF])


@each_format
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 3), blocks=st.integers(1, 3))
def test_blocks_of_random_bytes_decode_as_gguf_decodes_them(
    name: str, seed: int, outputs: int, blocks: int
) -> None:
    format = FORMATS[name]
    rng = np.random.default_rng(seed)
    arrays = random_arrays(format, outputs, blocks, rng)
    arrays["blocks"] = as_written(format, arrays["blocks"])
    wanted = witnessed(name, arrays["blocks"])
    found = decode(format, arrays)
    assert found.dtype == wanted.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@each_format
@settings(max_examples=10)
@given(data=st.data())
def test_a_block_of_chosen_bytes_decodes_as_gguf_decodes_it(name: str, data: st.DataObject) -> None:
    """Hypothesis chooses every byte, so that what fails becomes small."""
    format = FORMATS[name]
    size = format.arrays[0].count
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    blocks = as_written(format, raw.reshape(1, -1))
    wanted = witnessed(name, blocks)
    found = decode(format, {"blocks": blocks})
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@each_format
def test_a_block_is_as_large_as_gguf_says(name: str) -> None:
    sizes = {"Q2_0": (64, 18)}.get(name) or GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert (FORMATS[name].block, FORMATS[name].arrays[0].count) == sizes


GRIDS = {
    "iq2_xxs": quants.IQ2_XXS,
    "iq2_xs": quants.IQ2_XS,
    "iq2_s": quants.IQ2_S,
    "iq3_xxs": quants.IQ3_XXS,
    "iq3_s": quants.IQ3_S,
    "iq1": quants.IQ1_S,
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_point_of_a_grid_is_the_one_of_gguf(name: str) -> None:
    """Random blocks meet few of 2048."""
    GRIDS[name].init_grid()
    assert grid(name).dtype == np.int8 and name in POINTS
    np.testing.assert_array_equal(grid(name), np.asarray(GRIDS[name].grid)[0, 0])


@pytest.mark.parametrize("name", [one.name for one in GGUF if isinstance(one.codes.reading, Grid)])
def test_a_format_has_the_grid_that_its_bits_count(name: str) -> None:
    reading = FORMATS[name].codes.reading
    assert isinstance(reading, Grid)
    assert grid(reading.table).shape == (reading.entries, reading.span)
