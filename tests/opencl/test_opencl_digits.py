"""Products with weights of few bits by dot products of bytes: how exact they are, and where."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pytest
from opencl_runs import Array, normal, with_parameters, words_of

from ptir import functional as F
from ptir.backend.contract import Target
from ptir.weights.words import BITS

pytestmark = pytest.mark.turns(2)

INPUTS: Final = 96
OUTPUTS: Final = 40
GROUP: Final = 32


def product(target: Target, x: Array, values: Array, scale: Array, bits: int, zero: float) -> Array:
    """``x`` times ``(values + zero) * scale``, the weight a parameter."""
    group = len(values) // len(scale)

    def body(x: Any, words: Any, scale: Any) -> Any:
        weight = F.dequantize(words, scale, scale * zero, bits=bits, group=group, axis=0)
        return F.linear(x, weight, layout="io")

    return np.asarray(with_parameters(target, body, x, words_of(values, bits), scale))


def by_digits(target: Target) -> bool:
    """Whether the device has dot products of bytes; others multiply in f32."""
    device = target.backend.opened(target.device).device  # type: ignore[attr-defined]
    return "dot_bytes" in device.dialect.dots


def of_sums(target: Target, size: Array, inputs: int) -> Array:
    """What sums in f32 may be off, in any order; 0 where digits are summed without rounding.

    ``size`` is what the sizes of all addends come to.
    """
    return size * (0.0 if by_digits(target) else inputs * 2.0**-24)


def sizes(rng: np.random.Generator, rows: int, kind: str, huge: float = 1e35) -> Array:
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
        x = np.sign(x) * np.float32(huge)
    return x


@pytest.mark.slice(3)
@pytest.mark.parametrize("kind", ["normal", "uneven", "edges", "tiny", "huge"])
@pytest.mark.parametrize("rows", [1, 5, 9, 37])
@pytest.mark.parametrize("bits", BITS)
def test_products_are_as_exact_as_in_f32(opencl: Target, bits: int, rows: int, kind: str) -> None:
    rng = np.random.default_rng(bits)
    values = rng.integers(0, 2**bits, (INPUTS, OUTPUTS))
    zero = -(2.0 ** (bits - 1))
    scale = (2.0 ** rng.integers(-9, -5, (INPUTS // GROUP, OUTPUTS))).astype(np.float32)
    if kind == "huge":
        scale *= np.float32(2.0**-10)
    # in f32 a group is summed before it is scaled, and 32 * 127 * 1e35 is infinite
    x = sizes(rng, rows, kind, 1e35 if by_digits(opencl) else 1e34)
    wide = x.astype(np.float64).reshape(rows, -1, GROUP)
    weights = (values + zero).reshape(-1, GROUP, OUTPUTS)
    each = np.einsum("rgk,gko->rgo", wide, weights) * scale
    found = product(opencl, x, values, scale, bits, zero)
    # each activation off by half a unit, at most 2^-24 of the largest of its group, or by what
    # the smallest normal number leaves; then one rounding a group and one for every addition
    largest = np.abs(wide).max(2)
    bound = (largest * 2.0**-24 + 2.0**-126)[..., None] * np.abs(weights).sum(1) * scale
    bound = bound.sum(1) + np.abs(each).cumsum(1).sum(1) * 2.0**-22 + 1e-44
    size = np.einsum("rgk,gko->rgo", np.abs(wide), np.abs(weights)) * scale
    bound += of_sums(opencl, size.sum(1), INPUTS)
    assert (np.abs(found - each.sum(1)) <= bound).all()


@pytest.mark.slice(2)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
@pytest.mark.parametrize("rows", [3, 19])
def test_what_is_not_finite_gives_nan_and_stays_in_its_row(
    opencl: Target, rows: int, bad: float
) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 16, (INPUTS, OUTPUTS))
    scale = np.full((INPUTS // GROUP, OUTPUTS), 0.5, np.float32)
    x = rng.standard_normal((rows, INPUTS)).astype(np.float32)
    whole = product(opencl, x, values, scale, 4, -8.0)
    x[1, 40] = bad
    found = product(opencl, x, values, scale, 4, -8.0)
    lost = np.isnan if by_digits(opencl) else lambda x: ~np.isfinite(x)
    assert lost(found[1]).all()
    others = [row for row in range(rows) if row != 1]
    np.testing.assert_array_equal(found[others], whole[others])


@pytest.mark.slice(3)
@pytest.mark.parametrize("group", [16, 64, 96])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rows", [2, 12])
def test_whole_numbers_are_exact(opencl: Target, rows: int, bits: int, group: int) -> None:
    """Every digit, sum and zero point counts: results are the very numbers."""
    rng = np.random.default_rng(group)
    inputs = 2 * group
    values = rng.integers(0, 2**bits, (inputs, OUTPUTS))
    zero = -(2.0 ** (bits - 1))
    # one large activation a group sets the unit, so that the others have all three digits
    x = rng.integers(-(2**15), 2**15, (rows, inputs)).astype(np.float32)
    x[:, ::group] = 2.0**22
    values[::group] = int(-zero)  # and counts for nothing itself
    scale = np.ones((2, OUTPUTS), np.float32)
    found = product(opencl, x, values, scale, bits, zero)
    size = np.abs(x.astype(np.float64)) @ np.abs(values + zero)
    bound = size * 2.0**-23 + of_sums(opencl, size, inputs)
    if rows > 8:  # the bits of a group's sum that do not fit: 2^-31 of the largest possible one
        bound += 2 * group * 2.0**22 * 2.0 ** (bits - 1) * 2.0**-31
    assert (np.abs(found - x.astype(np.float64) @ (values + zero)) <= bound).all()
    small = np.where(np.abs(x) < 64, x, 0).astype(np.float32)
    found = product(opencl, small, values, scale, bits, zero)
    np.testing.assert_array_equal(found, small.astype(np.float64) @ (values + zero))


@pytest.mark.parametrize(("rows", "sums"), [(7, "a6_2"), (39, "a1_5")])
def test_the_processor_s_instruction_is_used_where_there_is_one(
    opencl: Target, rows: int, sums: str
) -> None:
    """Rows that no other test has: a plan that is known is not built again."""
    if not by_digits(opencl):
        pytest.skip("this device has no dot product of bytes")
    device = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    values = np.zeros((INPUTS, OUTPUTS), np.int64)
    scale = np.ones((INPUTS // GROUP, OUTPUTS), np.float32)
    built: list[str] = []
    original = type(device).build

    def build(self: Any, source: str) -> Any:
        built.append(source)
        return original(self, source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTIR_REBUILD_KERNELS", "1")
        patch.setattr(type(device), "build", build)
        product(opencl, np.ones((rows, INPUTS), np.float32), values, scale, 8, -128.0)
    into = rf"dot_bytes_v\w*\((of_v\w*\()?{sums}\b"  # a sum that changes may be held in halves
    assert any(re.search(into, source) for source in built)


@pytest.mark.slice(3)
@pytest.mark.usefixtures("dots", "built_anew")
@pytest.mark.parametrize("zero", ["middle", "none", "odd", "by output"])
@pytest.mark.parametrize("group", [16, 32, 48, 64, 128])
@pytest.mark.parametrize("bits", BITS)
def test_every_zero_point_and_size_of_group(
    opencl: Target, bits: int, group: int, zero: str
) -> None:
    """Prompts whose rows and outputs fill no tile, against float64."""
    rng, inputs, outputs, rows = np.random.default_rng(group), 384, 53, 23
    values = rng.integers(0, 2**bits, (inputs, outputs))
    values[:, 0], values[:, 1] = 0, 2**bits - 1  # sums at both ends
    x = normal(rows, inputs) * np.exp(normal(rows, inputs, seed=1)).astype(np.float32)
    x[0] = np.abs(x[0]).max()  # every activation the largest
    x[1] = -x[0]
    scale = np.exp(normal(inputs // group, outputs, seed=2)).astype(np.float32) / 64
    number = {"middle": -(2.0 ** (bits - 1)), "none": 0.0, "odd": -5.0}.get(zero)
    offset = scale * np.float32(number or 0)
    if number is None:
        offset = normal(inputs // group, outputs, seed=3)

    def body(x: Any, words: Any, scale: Any, *offset: Any) -> Any:
        start = offset[0] if offset else scale * number
        weight = F.dequantize(words, scale, start, bits=bits, group=group, axis=0)
        return F.linear(x, weight, layout="io")

    stored = (words_of(values, bits), scale) + ((offset,) if number is None else ())
    found = np.asarray(with_parameters(opencl, body, x, *stored))
    wide, whole = x.astype(float), values * np.repeat(scale.astype(float), group, 0)
    dense = whole + np.repeat(offset.astype(float), group, 0)
    near = dense if number is not None else np.abs(whole) + np.abs(dense - whole)
    largest = np.abs(wide).reshape(rows, -1, group).max(2)
    size = np.abs(near).reshape(-1, group, outputs).sum(1)
    # half a unit of every activation, the bits left out of a group's sum, a rounding a group
    bound = largest @ size * 2.0**-24 + largest @ scale * (2.0 ** (bits - 31) * group)
    bound += np.abs(wide) @ np.abs(near) * ((inputs // group + 2) * 2.0**-24)
    assert (np.abs(found - wide @ dense) <= bound).all()


@pytest.mark.slice(2)
@pytest.mark.parametrize("rows", [9, 16, 17, 130])
def test_rows_do_not_depend_on_those_beside_them(opencl: Target, rows: int) -> None:
    rng = np.random.default_rng(rows)
    values = rng.integers(0, 256, (INPUTS, OUTPUTS))
    scale = np.full((INPUTS // GROUP, OUTPUTS), 2.0**-7, np.float32)
    x = normal(rows, INPUTS)
    whole = product(opencl, x, values, scale, 8, -128.0)
    turned = product(opencl, x[::-1].copy(), values, scale, 8, -128.0)
    np.testing.assert_array_equal(turned[::-1], whole)
