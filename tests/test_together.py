"""Parameter sets that share a test: all of them run, and those that fail are named."""

from __future__ import annotations

import pytest

from together import together

SEEN: list[tuple[int, str]] = []


@together("a")
@pytest.mark.parametrize("b", ["x", "y"])
@pytest.mark.parametrize("a", range(3))
def test_each(a: int, b: str) -> None:
    SEEN.append((a, b))


def test_every_set_ran_in_a_test_of_its_group() -> None:
    (mark,) = test_each.pytestmark
    assert mark.args == ("group", ["0", "1", "2"])
    SEEN.clear()
    for group in mark.args[1]:
        test_each(group=group)
    assert sorted(SEEN) == [(a, b) for a in range(3) for b in "xy"]


def odd(number: int, folder: str) -> None:
    assert number % 2, f"{number} in {folder} is even"


def test_all_that_fail_are_named_with_what_they_said() -> None:
    rows = [pytest.param(1, id="one"), pytest.param(2, id="two"), 3, 4]
    every = together()(pytest.mark.parametrize("number", rows)(odd))
    with pytest.raises(AssertionError) as caught:
        every(folder="here")
    text = str(caught.value)
    assert text.startswith("2 of 4 fail:\ntwo: AssertionError: 2 in here is even")
    assert "\n4: AssertionError: 4 in here is even" in text and f"\n  at {__file__}:" in text


def test_a_group_is_named_by_a_function_of_the_set() -> None:
    by_half = together(lambda number: str(number // 2))
    mark = by_half(pytest.mark.parametrize("number", range(5))(odd)).pytestmark[0]
    assert mark.args == ("group", ["0", "1", "2"])


def test_a_set_with_a_mark_is_refused() -> None:
    rows = [pytest.param(1, marks=pytest.mark.slow)]
    with pytest.raises(AssertionError, match="a test of its own"):
        together()(pytest.mark.parametrize("number", rows)(odd))


def skips_or(number: int) -> None:
    if number == 2:
        pytest.skip("two is elsewhere")
    assert number != 1, "one fails"


@pytest.mark.parametrize(
    ("rows", "raised"),
    [
        ([1, 2, 3], AssertionError),
        ([2, 1], AssertionError),
        ([2, 2], pytest.skip.Exception),
        ([2, 3], None),
    ],
)
def test_a_set_that_skips_hides_no_other(
    rows: list[int], raised: type[BaseException] | None
) -> None:
    every = together()(pytest.mark.parametrize("number", rows)(skips_or))
    if raised is None:
        every()
        return
    with pytest.raises(raised):
        every()
