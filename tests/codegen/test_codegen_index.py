"""Index arithmetic: the normal form means what it was made from, and simplifies what it must."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptir.codegen.expressions.index import (
    Axis,
    Index,
    axis,
    number,
    ravel_index,
    replaced,
    spelled,
    unravel_index,
)

SIZES = {"a": 3, "b": 16, "c": 5, "d": 48}
Meaning = Callable[[dict[str, int]], int]


def value(index: Index, at: dict[str, int]) -> int:
    """What the C text of an index gives; C rounds towards zero."""

    def quotient(a: int, b: int) -> int:
        assert a >= 0, "C would round a negative number the other way"
        return a // b

    class Whole(int):
        def __truediv__(self, other: int) -> Whole:
            return Whole(quotient(int(self), other))

        def __mod__(self, other: int) -> Whole:
            assert int(self) >= 0
            return Whole(int(self) % other)

        def __add__(self, other: int) -> Whole:
            return Whole(int(self) + int(other))

        def __mul__(self, other: int) -> Whole:
            return Whole(int(self) * int(other))

        def __sub__(self, other: int) -> Whole:
            return Whole(int(self) - int(other))

    text = spelled(index, lambda expr: pytest.fail("nothing is dynamic here"))
    return int(eval(text, {}, {name: Whole(n) for name, n in at.items()}))


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
        factor = draw(st.integers(-4, 20))
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
