"""Arithmetic of ranges: against sets of places, written out one by one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ptir.sharding.placement import (
    Split,
    balanced,
    below,
    cut,
    merged,
    ranges_of_units,
    runs,
    units_of_ranges,
)

PLACES = st.sets(st.integers(0, 23))


def ranges(places: set[int]) -> tuple[tuple[int, int], ...]:
    return merged((place, place + 1) for place in places)


def listed(found: tuple[tuple[int, int], ...]) -> set[int]:
    return {place for start, end in found for place in range(start, end)}


@given(PLACES)
def test_merged_ranges_are_in_order_and_apart(places: set[int]) -> None:
    found = ranges(places)
    assert listed(found) == places
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


@given(st.sets(st.integers(0, 5)), st.integers(1, 4), st.integers(1, 4))
def test_units_are_found_again_from_their_places(units: set[int], outer: int, inner: int) -> None:
    found = ranges_of_units(ranges(units), 6, outer, inner)
    wanted = {(n * 6 + u) * inner + i for n in range(outer) for u in units for i in range(inner)}
    assert listed(found) == wanted
    assert units_of_ranges(found, 6, outer, inner) == ranges(units)


@given(PLACES, st.sampled_from([(1, 2, 4), (2, 3, 4), (4, 6, 1), (3, 4, 2)]))
def test_places_that_are_no_whole_units_are_refused(
    places: set[int], form: tuple[int, int, int]
) -> None:
    outer, count, inner = form
    found = units_of_ranges(ranges(places), count, outer, inner)
    if found is not None:
        assert listed(ranges_of_units(found, count, outer, inner)) == places


@given(PLACES, st.integers(0, 24), st.integers(0, 24))
def test_cut_and_below_count_from_where_they_are_told(places: set[int], a: int, b: int) -> None:
    start, end = sorted((a, b))
    assert listed(cut(ranges(places), start, end)) == {
        p - start for p in places if start <= p < end
    }
    assert below(ranges(places), end) == len([p for p in places if p < end])


def test_runs_say_where_each_range_is_in_what_its_worker_holds() -> None:
    parts = (((0, 2), (4, 6)), ((2, 4), (6, 9)))
    assert list(runs(parts)) == [(0, 2, 0, 0), (2, 4, 1, 0), (4, 6, 0, 2), (6, 9, 1, 2)]


def test_even_parts_are_multiples_of_the_grain_where_that_leaves_enough() -> None:
    assert balanced(50257, 2, 16) == (((0, 25136),), ((25136, 50257),))
    assert balanced(12, 3, 16) == (((0, 4),), ((4, 8),), ((8, 12),))
    assert balanced(2, 3) is None
    found = balanced(50257, 3, 16)
    assert found is not None
    assert [part[0][0] % 16 for part in found] == [0, 0, 0]
    assert Split(0, found).most < 1.001 / 3
