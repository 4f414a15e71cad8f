"""Rounding and ULP sizes against outsiders: ml_dtypes, NumPy and exact fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptir.types import DTYPES
from ptir_testsuite.oracles.floats import FORMATS, as_double, rounded, ulp, wrapped

NUMPY = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
}
EIGHT = ("f8e5m2", "f8e4m3fn")
SIXTEEN = ("f16", "bf16")


def values_of(name):
    """Every value of a narrow format."""
    bits = np.arange(1 << (8 if name in EIGHT else 16), dtype=np.uint16)
    raw = bits.astype(np.uint8) if name in EIGHT else bits
    with np.errstate(invalid="ignore"):
        return raw.view(NUMPY[name]).astype(np.float64)


@pytest.mark.parametrize("name", [*EIGHT, *SIXTEEN])
def test_every_value_of_a_format_rounds_to_itself(name):
    for value in values_of(name).tolist():
        if math.isfinite(value):
            assert rounded(value.as_integer_ratio(), FORMATS[name]) == value


@pytest.mark.parametrize("name", [*EIGHT, *SIXTEEN])
def test_halfway_points_go_to_even_and_their_neighbours_do_not(name):
    finite = sorted({v for v in values_of(name).tolist() if math.isfinite(v)})
    for low, high in itertools.pairwise(finite):
        middle = (Fraction(low) + Fraction(high)) / 2
        nudge = Fraction(1, 2**200)
        around = [
            rounded((m.numerator, m.denominator), FORMATS[name])
            for m in (middle - nudge, middle, middle + nudge)
        ]
        assert (around[0], around[2]) == (low, high)
        step = ulp(max(abs(low), abs(high)) if high > 0 else low, FORMATS[name])
        even = [
            v for v in (low, high) if (Fraction(v) / Fraction(min(step, abs(high - low)))) % 2 == 0
        ]
        assert around[1] in even


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_agrees_with_the_libraries_that_store_the_formats(value):
    with np.errstate(all="ignore"):
        assert rounded(value.as_integer_ratio(), FORMATS["f64"]) == value
        for name in ("f32", "f16"):  # NumPy rounds a double to these once
            assert rounded(value.as_integer_ratio(), FORMATS[name]) == float(NUMPY[name](value))
        single = float(np.float32(value))
        if math.isfinite(single):
            for name in ("bf16", *EIGHT):  # ml_dtypes goes through f32, from which it rounds once
                wanted = float(np.float32(single).astype(NUMPY[name]))
                found = rounded(single.as_integer_ratio(), FORMATS[name])
                assert found == wanted or (math.isnan(found) and math.isnan(wanted))


@given(st.integers(-(10**40), 10**40), st.integers(1, 10**40))
def test_two_doubles_hold_a_ratio_to_a_hundred_bits(numerator, denominator):
    high, low = as_double((numerator, denominator))
    exact = Fraction(numerator, denominator)
    assert high == numerator / denominator
    assert abs(exact - Fraction(high) - Fraction(low)) <= abs(exact) * Fraction(1, 2**100)


@pytest.mark.parametrize("name", list(FORMATS))
def test_ulp_is_the_gap_to_the_next_value(name):
    if name in ("f64", "f32", "f16"):
        for value in (1.0, 1.5, 0.75, 3.0, FORMATS[name].tiny, FORMATS[name].normal):
            assert ulp(value, FORMATS[name]) == float(np.spacing(NUMPY[name](value)))
    assert ulp(0.0, FORMATS[name]) == FORMATS[name].tiny
    assert ulp(1.0, FORMATS[name]) == 2.0 ** (1 - FORMATS[name].precision)


def test_integers_wrap_at_their_width():
    assert wrapped(128, DTYPES["i8"]) == -128
    assert wrapped(-1, DTYPES["u16"]) == 65535
    assert wrapped(2**63, DTYPES["i64"]) == -(2**63)
