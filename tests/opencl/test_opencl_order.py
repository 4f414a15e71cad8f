"""Sorts and choices of the greatest against NumPy: ties, NaN, zeros, every kind of element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, normal, run

from ptir.backend.contract import Target
from ptir.capture import call_multi
from ptir.codegen.families.sort.match import FEW
from ptir.codegen.families.sort.serial import LONG, Inserting


def ordered(x: Array, axis: int, descending: bool) -> Array:
    """The indices of a stable sort with NaN last: by value, NaN apart."""
    numbers = x.astype(np.float64) if x.dtype.kind not in "iu" else x.astype(object)
    if descending:
        numbers = -numbers
    nan = np.isnan(x.astype(np.float64)) if x.dtype.kind not in "iu" else np.zeros(x.shape, bool)
    lines = np.moveaxis(numbers, axis, -1), np.moveaxis(nan, axis, -1)
    result = np.empty(lines[0].shape, np.int32)
    for place in np.ndindex(result.shape[:-1]):
        keys = [(bool(n), 0 if n else v) for v, n in zip(lines[0][place], lines[1][place])]  # noqa: B905
        result[place] = sorted(range(len(keys)), key=keys.__getitem__)
    return np.moveaxis(result, -1, axis)


def same(found: Any, x: Array, order: Array, axis: int) -> None:
    """The right indices, and the very elements there; any NaN is like any other."""
    values, places = found
    assert np.array_equal(places, order)
    wanted = np.take_along_axis(x, order, axis)
    assert values.dtype == x.dtype
    if x.dtype.kind in "iu":
        assert np.array_equal(values, wanted)
        return
    values, wanted = values.astype(np.float64), wanted.astype(np.float64)
    assert np.array_equal(values, wanted, equal_nan=True)
    numbers = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(values)[numbers], np.signbit(wanted)[numbers])


def awkward(*shape: int, seed: int = 0) -> Array:
    """Numbers with many ties, both zeros, both infinities and NaN."""
    x = np.round(normal(*shape, seed=seed) * 3)
    rng = np.random.default_rng(seed + 1)
    for value in (0.0, -0.0, np.inf, -np.inf, np.nan):
        x[rng.random(shape) < 0.05] = value
    return x


@pytest.mark.slice(3)
@pytest.mark.parametrize("size", [1, 2, 17, Inserting.MOST, Inserting.MOST + 1, 300, LONG + 5])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_is_stable_with_nan_last(opencl: Target, size: int, descending: bool) -> None:
    x = awkward(3, size)
    found = run(opencl, lambda x: call_multi("sort", x, axis=1, descending=descending), x)
    same(found, x, ordered(x, 1, descending), 1)


@pytest.mark.slice(3)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("size", [5, 40])
def test_sorting_along_any_axis(opencl: Target, axis: int, size: int) -> None:
    x = awkward(*(size if n == axis else 3 for n in range(3)), seed=axis)
    found = run(opencl, lambda x: call_multi("sort", x, axis=axis, descending=False), x)
    same(found, x, ordered(x, axis, False), axis)


KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.slice(3)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("size", [9, 100])
def test_integers_of_every_width(opencl: Target, dtype: str, size: int) -> None:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(size)
    x = rng.integers(info.min, info.max, (2, size), dtype, endpoint=True)
    x[0, :4] = info.min, info.max, info.max, info.min
    x[1] = rng.integers(0, 3, size)
    found = run(opencl, lambda x: call_multi("sort", x, axis=1, descending=True), x)
    same(found, x, ordered(x, 1, True), 1)
    found = run(opencl, lambda x: call_multi("top_k", x, k=7), x)
    same(found, x, ordered(x, 1, True)[:, :7], 1)


@pytest.mark.slice(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("size", [9, 100])
def test_floats_of_every_width(opencl: Target, dtype: str, size: int) -> None:
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x = awkward(2, size).astype(kind)
    for descending in (False, True):
        found = run(
            opencl,
            lambda x, d=descending: call_multi("sort", x, axis=1, descending=d),
            x,
        )
        same(found, x, ordered(x, 1, descending), 1)


@pytest.mark.slice(2)
@pytest.mark.parametrize(
    ("size", "k"),
    [(1, 1), (9, 9), (127, 1), (130, 1), (131, 3), (700, 40), (5000, FEW), (5000, FEW + 1)],
)
def test_the_greatest_elements(opencl: Target, size: int, k: int) -> None:
    x = awkward(3, size)
    found = run(opencl, lambda x: call_multi("top_k", x, k=k), x)
    same(found, x, ordered(x, 1, True)[:, :k], 1)


@pytest.mark.parametrize("kind", ["rising", "falling", "equal", "nan"])
def test_the_greatest_of_lines_that_are_already_ordered(opencl: Target, kind: str) -> None:
    line = np.arange(1000, dtype=np.float32)
    chosen = {"rising": line, "falling": -line, "equal": line * 0, "nan": line * np.nan}
    x = chosen[kind].reshape(1, -1)
    found = run(opencl, lambda x: call_multi("top_k", x, k=20), x)
    same(found, x, ordered(x, 1, True)[:, :20], 1)


def test_what_is_chosen_from_is_computed_on_the_way(opencl: Target) -> None:
    x = normal(2, 400)
    values, places = run(opencl, lambda x: call_multi("top_k", x * -2.0, k=5), x)
    same((values, places), x * -2, ordered(x * -2, 1, True)[:, :5], 1)


def test_one_element_that_differs_in_one_digit_moves_to_the_front(opencl: Target) -> None:
    x = np.full((4, 100), 0x01010101, np.int32)
    for digit in range(4):
        x[digit, 99] -= 1 << 8 * digit
    found = run(opencl, lambda x: call_multi("sort", x, axis=1, descending=False), x)
    same(found, x, ordered(x, 1, False), 1)
