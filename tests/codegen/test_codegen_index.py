"""Index arithmetic: the normal form means what it was made from, and simplifies what it must."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ptir.codegen.expressions.index import (
    MOST,
    Axis,
    Index,
    axis,
    is_long,
    number,
    ravel_index,
    replaced,
    spelled,
    unravel_index,
)

SIZES = {"a": 3, "b": 16, "c": 5, "d": 48}
Meaning = Callable[[dict[str, int]], int]


HUGE = (1 << 20, 1 << 27)


class Whole(int):
    """A number as C computes with it: of 32 bits, which must hold it, or of 64."""

    bits = 32

    @staticmethod
    def of(found: int, *parts: object) -> Whole:
        """What comes of some parts: as many bits as the one with most."""
        made = Whole(found)
        made.bits = max(getattr(one, "bits", 32) for one in parts)
        assert -(1 << made.bits - 1) <= found < 1 << made.bits - 1, f"{found} in {made.bits} bits"
        return made

    def __truediv__(self, other: int) -> Whole:
        assert int(self) >= 0, "C would round a negative number the other way"
        return Whole.of(int(self) // int(other), self, other)

    def __mod__(self, other: int) -> Whole:
        assert int(self) >= 0
        return Whole.of(int(self) % int(other), self, other)

    def __add__(self, other: int) -> Whole:
        return Whole.of(int(self) + int(other), self, other)

    def __mul__(self, other: int) -> Whole:
        return Whole.of(int(self) * int(other), self, other)

    def __sub__(self, other: int) -> Whole:
        return Whole.of(int(self) - int(other), self, other)


class Long:
    """The cast: ``long @ a * b`` groups as ``(long)a*b`` does."""

    def __matmul__(self, of: int) -> Whole:
        made = Whole(of)
        made.bits = 64
        return made


def value(index: Index, at: dict[str, int]) -> int:
    """What the C text of an index gives; C rounds towards zero."""
    assume(max(abs(index.low), abs(index.high)) < 1 << 60)
    text = spelled(index, lambda expr: pytest.fail("nothing is dynamic here"), "long")
    named = {name: Whole(n) for name, n in at.items()}
    return int(eval(text.replace("(long)", "long@"), {"long": Long()}, named))


@st.composite
def indices(draw: st.DrawFn, depth: int = 4) -> tuple[Index, Meaning]:
    if depth == 0 or draw(st.booleans()):
        name = draw(st.sampled_from(sorted(SIZES)))
        return axis(name, SIZES[name]), lambda at: at[name]
    kind = draw(st.sampled_from(("add", "mul", "shift", "div", "mod")))
    left, mean = draw(indices(depth - 1))
    amount = draw(st.integers(1, 24))
    if kind == "add":
        right, other = draw(indices(depth - 1))
        return left + right, lambda at: mean(at) + other(at)
    if kind == "mul":
        factor = draw(st.integers(-4, 20) | st.sampled_from(HUGE))
        return left * factor, lambda at: mean(at) * factor
    if kind == "shift":
        by = draw(st.integers(-30, 30))
        return left + by, lambda at: mean(at) + by
    if kind == "div":
        return left // amount, lambda at: mean(at) // amount
    return left % amount, lambda at: mean(at) % amount


places = st.fixed_dictionaries({name: st.integers(0, n - 1) for name, n in SIZES.items()})


@given(indices(), places)
def test_the_text_of_an_index_gives_what_it_was_built_from(
    made: tuple[Index, Meaning], at: dict[str, int]
) -> None:
    index, mean = made
    assert value(index, at) == mean(at)


@given(places, st.sampled_from(HUGE), st.integers(1, 24))
def test_what_32_bits_do_not_hold_is_computed_in_64(
    at: dict[str, int], factor: int, by: int
) -> None:
    far = axis("d", 48) * factor + axis("b", 16) * by
    flat = at["d"] * factor + at["b"] * by
    assert value(far * 64, at) == flat * 64
    assert value(far // (by + 1) % 7 + axis("a", 3), at) == flat // (by + 1) % 7 + at["a"]
    assert is_long(far) == (47 * factor + 15 * by > MOST)
    back = far * 64 + axis("c", 5) * -1 * (1 << 31)  # what a part adds, another takes away
    assert value(back, at) == flat * 64 - at["c"] * (1 << 31)


@given(indices(), places)
def test_values_stay_within_the_bounds(made: tuple[Index, Meaning], at: dict[str, int]) -> None:
    index, mean = made
    assert index.low <= mean(at) <= index.high


@given(indices(), places)
def test_replacing_a_loop_variable_is_evaluating_it(
    made: tuple[Index, Meaning], at: dict[str, int]
) -> None:
    index, mean = made
    fixed = replaced(index, {Axis(name, SIZES[name]): number(at[name]) for name in SIZES})
    assert fixed.is_constant and fixed.constant == mean(at)


@given(indices(), places, st.sampled_from(sorted(SIZES)))
def test_a_coefficient_says_what_one_step_changes(
    made: tuple[Index, Meaning], at: dict[str, int], name: str
) -> None:
    index, mean = made
    factor = index.coefficient(Axis(name, SIZES[name]))
    if factor is not None and at[name] + 1 < SIZES[name]:
        assert mean({**at, name: at[name] + 1}) - mean(at) == factor


shapes = st.lists(st.integers(1, 6), max_size=4)


@given(shapes, st.data())
def test_digits_and_flatten_undo_each_other(shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape)
    flat = axis("f", size)
    assert ravel_index(unravel_index(flat, shape), shape) == flat
    coordinates = tuple(axis(f"x{i}", n) for i, n in enumerate(shape))
    assert unravel_index(ravel_index(coordinates, shape), shape) == coordinates


def test_a_vector_of_a_longer_axis_splits_into_vectors_of_its_digits() -> None:
    vector = axis("v", 48) * 16 + axis("lane", 16)
    head, place = unravel_index(vector, (12, 64))
    assert head == axis("v", 48) // 4
    assert place.coefficient(Axis("lane", 16)) == 1


def test_a_flat_position_survives_being_reshaped_twice() -> None:
    flat = axis("f", 120)
    once = ravel_index(unravel_index(flat, (2, 3, 20)), (2, 3, 20))
    assert ravel_index(unravel_index(once, (6, 4, 5)), (6, 4, 5)) == flat


@pytest.mark.parametrize(("below", "by"), [(6, 2), (12, 4), (12, 12), (7, 1)])
def test_digits_are_one_form_whichever_is_taken_first(below: int, by: int) -> None:
    """Fusions compare places: ``v % 6 // 2`` and ``v // 2 % 3`` are one."""
    v = axis("v", 5 * below)
    assert v % below // by == v // by % (below // by)
