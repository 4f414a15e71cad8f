"""The greatest and smallest of floats: NaN of either sign stays, -0 < +0, along any axis."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opencl_runs import Array, run

import ptir
from ptir import functional as F
from ptir.backend.contract import Target

DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f64": np.float64,
}
LINES = ((0.0, -0.0), (-0.0,), (-1.0, -0.0), (1.0, 0.0, -0.0), (-np.inf,), (np.inf,))
MORE = ((-np.inf, -2.5, -1e-3), (np.inf, 2.5, 1e-3), (-2.0, 3.0, 0.0), (-1.0, -3.0, -np.inf))


def lines(width: int) -> Array:
    """Every kind of line, each also with one NaN, of either sign, at every place in turn."""
    rng = np.random.default_rng(width)
    plain = [rng.choice(np.array(kind), width) for kind in LINES + MORE for _ in range(3)]
    marked = [np.array(line) for line in plain]
    for number, line in enumerate(marked):
        line[number % width] = np.nan if number % 2 else np.copysign(np.nan, -1)
    return np.array(plain + marked)


def greatest(x: Array) -> Array:
    """Of each line, by the definition."""
    x = x.astype(np.float64)
    found = x.max(1)  # NaN where one is
    positive = ((x == 0) & ~np.signbit(x)).any(1)
    return np.where(found == 0, np.where(positive, 0.0, -0.0), found)


@pytest.mark.slice(3)
@pytest.mark.parametrize("width", [1, 7, 16, 37, 80])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_extremes_know_nan_and_signed_zeros(
    opencl: Target, kind: str, dtype: str, width: int
) -> None:
    x = lines(width).astype(DTYPES[dtype])
    wanted = greatest(x) if kind == "max" else -greatest(-x)
    along_rows = run(opencl, lambda x: getattr(x, kind)(1), x)
    along_columns = run(opencl, lambda x: getattr(x, kind)(0), np.ascontiguousarray(x.T))
    for found in (along_rows, along_columns):
        found = found.astype(np.float64)
        np.testing.assert_array_equal(found, wanted)
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers]))


BOUNDS = (0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan)
BOUNDED = (*BOUNDS, -np.nan, 6e-5, -6e-5, 3.0, -3.0)


@pytest.mark.slice(2)
@pytest.mark.parametrize("count", [1, 16, 37])
@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_bounds_know_nan_and_signed_zeros(opencl: Target, dtype: str, count: int) -> None:
    """Most need one comparison; written the other way round, and as both bounds of a clamp, too."""
    x = np.array([np.roll(BOUNDED, -place)[:1].repeat(count) for place in range(len(BOUNDED))])
    x = x.astype(DTYPES[dtype])
    calls: list[Any] = []
    wanted = list[Array]()
    for bound in BOUNDS:
        beside = np.broadcast_to(np.array(bound), x.shape)
        highest, least = (
            sign * greatest(sign * np.stack([x.astype(np.float64), beside], 1)) for sign in (1, -1)
        )
        calls += [
            lambda x, b: F.maximum(x, b),
            lambda x, b: F.maximum(b, x),
            lambda x, b: F.minimum(x, b),
            lambda x, b: F.minimum(b, x),
        ]
        wanted += [highest, highest, least, least]

    def all_of_them(x: Any) -> Any:
        bounds = [F.full((), bound, dtype) for bound in BOUNDS for _ in range(4)]
        made = [one(x, bound) for one, bound in zip(calls, bounds, strict=True)]
        return F.stack([*made, F.clamp(x, F.full((), -1.5, dtype), F.full((), 0.0, dtype))])

    found = run(opencl, all_of_them, x).astype(np.float64)
    low = greatest(np.stack([x.astype(np.float64), np.full(x.shape, -1.5)], 1))
    wanted.append(-greatest(-np.stack([low, np.zeros(x.shape)], 1)))
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, expected)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@pytest.mark.slice(2)
@pytest.mark.parametrize("dtype", ["i16", "bf16"])
@pytest.mark.parametrize("count", [1, 16, 37])
def test_a_nan_of_f16_has_one_form_in_a_vector_and_beside_it(
    opencl: Target, count: int, dtype: str
) -> None:
    """Bits that are looked at must not depend on which elements are computed together."""
    bits = np.resize(np.uint16([0x7E00, 0xFE00, 0x7E01, 0x3C00]), count)
    found = run(
        opencl, lambda x: F.bitcast(x, dtype=ptir.types.DTYPES[dtype]), bits.view(np.float16)
    )
    assert found.view(np.uint16).tolist() == bits.tolist()


@pytest.mark.parametrize("count", [16, 37])
def test_a_nan_of_f16_is_stored_alike_everywhere(opencl: Target, count: int) -> None:
    """What the last lines of a tensor store is what a vector stores of the same values."""
    bits = np.resize(np.uint16([0x7E00, 0xFE00, 0x7E01, 0x3C00]), count)
    found = run(opencl, lambda x: -x, bits.view(np.float16)).view(np.uint16)
    assert found.tolist() == np.resize(found[:4], count).tolist()
    assert np.isnan(found[:3].view(np.float16)).all() and found[3] == 0xBC00
    bits_of_it = run(
        opencl, lambda x: F.bitcast(-x, dtype=ptir.types.DTYPES["i16"]), bits.view(np.float16)
    )
    assert bits_of_it.view(np.uint16).tolist() == found.tolist()
