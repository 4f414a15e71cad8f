"""Products with weights of 4 and 8 bits by dot products of bytes: how exact they are, and where."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from opencl_runs import Array, with_parameters

from ptir import functional as F
from ptir.backend.contract import Target

INPUTS: Final = 96
OUTPUTS: Final = 40
GROUP: Final = 32


def words_of(values: Array, bits: int) -> Array:
    """Whole numbers [inputs, outputs] as words along the inputs."""
    per = 32 // bits
    words = np.zeros((len(values) // per, values.shape[1]), np.uint32)
    for k, row in enumerate(values):
        words[k // per] |= (row << (k % per * bits)).astype(np.uint32)
    return words


def product(target: Target, x: Array, values: Array, scale: Array, bits: int, zero: float) -> Array:
    """``x`` times ``(values + zero) * scale``, the weight a parameter."""
    group = len(values) // len(scale)

    def body(x: Any, words: Any, scale: Any) -> Any:
        weight = F.dequantize(words, scale, scale * zero, bits=bits, group=group, axis=0)
        return F.linear(x, weight, layout="io")

    return np.asarray(with_parameters(target, body, x, words_of(values, bits), scale))


def sizes(rng: np.random.Generator, rows: int, kind: str) -> Array:
    """Activations of one kind."""
    x = rng.standard_normal((rows, INPUTS)).astype(np.float32)
    if kind == "uneven":  # groups of very different size, and one activation above all others
        x *= np.repeat(np.float32([1e-20, 1.0, 1e20]), GROUP)
        x[:, GROUP + 3] = 3e5
    elif kind == "edges":  # just below and above powers of two, where units change
        x = np.float32(1.0) + x * np.float32(2.0**-9)
        x[:, ::3] *= -1
        x[:, 1] = np.nextafter(np.float32(2), np.float32(0))
        x[:, GROUP + 1] = -x[0, 1]
    elif kind == "tiny":
        x *= np.float32(2.0**-110)
    elif kind == "huge":
        x = np.sign(x) * np.float32(1e35)
    return x


@pytest.mark.parametrize("kind", ["normal", "uneven", "edges", "tiny", "huge"])
@pytest.mark.parametrize("rows", [1, 5, 9, 37])
@pytest.mark.parametrize("bits", [4, 8])
def test_products_are_as_exact_as_in_f32(c: Target, bits: int, rows: int, kind: str) -> None:
    rng = np.random.default_rng(bits)
    values = rng.integers(0, 2**bits, (INPUTS, OUTPUTS))
    zero = -(2.0 ** (bits - 1))
    scale = (2.0 ** rng.integers(-9, -5, (INPUTS // GROUP, OUTPUTS))).astype(np.float32)
    if kind == "huge":
        scale *= np.float32(2.0**-10)
    x = sizes(rng, rows, kind)
    wide = x.astype(np.float64).reshape(rows, -1, GROUP)
    weights = (values + zero).reshape(-1, GROUP, OUTPUTS)
    each = np.einsum("rgk,gko->rgo", wide, weights) * scale
    found = product(c, x, values, scale, bits, zero)
    # each activation off by half a unit, at most 2^-24 of the largest of its group, or by what
    # the smallest normal number leaves; then one rounding a group and one for every addition
    largest = np.abs(wide).max(2)
    bound = (largest * 2.0**-24 + 2.0**-126)[..., None] * np.abs(weights).sum(1) * scale
    bound = bound.sum(1) + np.abs(each).cumsum(1).sum(1) * 2.0**-22 + 1e-44
    assert (np.abs(found - each.sum(1)) <= bound).all()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
def test_what_is_not_finite_gives_nan_and_stays_in_its_row(c: Target, bad: float) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 16, (INPUTS, OUTPUTS))
    scale = np.full((INPUTS // GROUP, OUTPUTS), 0.5, np.float32)
    x = rng.standard_normal((3, INPUTS)).astype(np.float32)
    whole = product(c, x, values, scale, 4, -8.0)
    x[1, 40] = bad
    found = product(c, x, values, scale, 4, -8.0)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], whole[[0, 2]])


@pytest.mark.parametrize("group", [16, 64, 96])
@pytest.mark.parametrize("bits", [4, 8])
def test_whole_numbers_are_exact(c: Target, bits: int, group: int) -> None:
    """Every digit, sum and zero point counts: results are the very numbers."""
    rng = np.random.default_rng(group)
    inputs = 2 * group
    values = rng.integers(0, 2**bits, (inputs, OUTPUTS))
    zero = -(2.0 ** (bits - 1))
    # one large activation a group sets the unit, so that the others have all three digits
    x = rng.integers(-(2**15), 2**15, (2, inputs)).astype(np.float32)
    x[:, ::group] = 2.0**22
    values[::group] = int(-zero)  # and counts for nothing itself
    scale = np.ones((2, OUTPUTS), np.float32)
    found = product(c, x, values, scale, bits, zero)
    terms = np.abs(x.astype(np.float64)) @ np.abs(values + zero)
    assert (np.abs(found - x.astype(np.float64) @ (values + zero)) <= terms * 2.0**-23).all()
    small = np.where(np.abs(x) < 64, x, 0).astype(np.float32)
    found = product(c, small, values, scale, bits, zero)
    np.testing.assert_array_equal(found, small.astype(np.float64) @ (values + zero))


def test_the_processor_s_instruction_is_used_where_there_is_one(c: Target) -> None:
    from ptir_backend_c.device import CDevice

    device = c.backend.opened(c.device).device  # type: ignore[attr-defined]
    assert isinstance(device, CDevice)
    if "dot_bytes" not in device.dialect.dots:
        pytest.skip("this processor has no dot product of bytes")
    values = np.zeros((INPUTS, OUTPUTS), np.int64)
    scale = np.ones((INPUTS // GROUP, OUTPUTS), np.float32)
    built: list[str] = []
    before = device._compiler
    assert before is not None
    original = CDevice.build

    def build(self: CDevice, source: str) -> Any:
        built.append(source)
        return original(self, source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTIR_REBUILD_KERNELS", "1")
        patch.setattr(CDevice, "build", build)
        product(c, np.ones((7, INPUTS), np.float32), values, scale, 8, -128.0)
    assert any("dot_bytes_vi32(a6_2" in source for source in built)
