"""Differences: ulps against ``nextafter``, NaN, infinities, and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptir.debug import Tolerance, difference
from ptir.errors import UsageError

FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


@given(st.sampled_from(sorted(FLOATS)), st.floats(-100, 100), st.integers(1, 9))
def test_ulps_count_the_numbers_between(name: str, start: float, steps: int) -> None:
    dtype = FLOATS[name]
    wanted = np.array([start], dtype)
    got = wanted
    for _ in range(steps):
        got = np.nextafter(got, np.array([math.inf], dtype))
    assert difference(got, wanted).ulps == steps == difference(wanted, got).ulps


def test_the_worst_place_is_named_and_measured_by_the_largest_that_was_wanted() -> None:
    wanted = np.array([[1.0, -8.0], [0.5, 2.0]], np.float32)
    got = wanted + np.array([[0.0, 0.25], [0.5, 0.0]], np.float32)
    found = difference(got, wanted)
    assert (found.place, found.got, found.wanted) == ((1, 0), 1.0, 0.5)
    assert (found.relative, found.differing, found.elements) == (0.5 / 8, 2, 4)


SPECIAL: dict[str, tuple[list[float], list[float], float]] = {
    "nan where nan was wanted": ([math.nan, 1], [math.nan, 1], 0.0),
    "nan where a number was": ([math.nan, 1], [2, 1], math.inf),
    "a number where nan was": ([2, 1], [math.nan, 1], math.inf),
    "the same infinity": ([math.inf, 1], [math.inf, 1], 0.0),
    "the other infinity": ([-math.inf, 1], [math.inf, 1], math.inf),
    "zeros of other signs": ([-0.0, 1], [0.0, 1], 0.0),
    "something where all is zero": ([1e-30, 0], [0, 0], 1.0),
}


@pytest.mark.parametrize("case", SPECIAL)
def test_what_is_no_number(case: str) -> None:
    got, wanted, relative = SPECIAL[case]
    assert difference(np.array(got, "f4"), np.array(wanted, "f4")).relative == relative


@pytest.mark.parametrize("dtype", ["i4", "u1", "?", "i8"])
def test_whole_numbers_must_be_equal(dtype: str) -> None:
    wanted = np.array([1, 0, 1], dtype)
    got = np.array([1, 1, 1], dtype)
    found = difference(got, wanted)
    assert found.differing == 1 and found.place == (1,) and not Tolerance(10.0).allows(found)
    assert Tolerance().allows(difference(wanted, wanted))


def test_nothing_differs_in_nothing() -> None:
    empty = np.empty((0, 3), np.float32)
    assert Tolerance(0.0).allows(difference(empty, empty))


OTHERS: tuple[tuple[Any, Any], ...] = (
    (np.zeros(2, "f4"), np.zeros(3, "f4")),
    (np.zeros(2, "f4"), np.zeros(2, "f8")),
)


@pytest.mark.parametrize("got, wanted", OTHERS)
def test_arrays_of_other_types_are_refused(got: Any, wanted: Any) -> None:
    with pytest.raises(UsageError, match="compare results of one program"):
        difference(got, wanted)


@pytest.mark.parametrize("bound", [-1.0, math.nan, math.inf])
def test_tolerances_are_numbers_from_zero(bound: float) -> None:
    with pytest.raises(UsageError, match="must be a number from 0"):
        Tolerance(bound)
