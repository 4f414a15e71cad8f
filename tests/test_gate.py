"""Slices of the tests: what they hold, and that nothing is left out of all of them."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gate
from gate import AGAIN, LONG, _values, chosen, share, sliced, turn_of
from proof_only import PROOF_ONLY

GRID = [(f"a={a}", f"b={b}") for a, b in product(range(4), range(6))]


@pytest.mark.parametrize("number", [0, 1, 7, 123_456])
def test_a_slice_meets_every_value_where_it_can(number: int) -> None:
    rows = [GRID[place] for place in chosen(GRID, 6, number, "name")]
    assert {value for row in rows for value in row} == {value for row in GRID for value in row}


def test_successive_slices_meet_every_row() -> None:
    met = {place for number in range(len(GRID)) for place in chosen(GRID, 2, number)}
    assert met == set(range(len(GRID)))


def test_a_number_repeats_its_slice_and_another_changes_it() -> None:
    assert chosen(GRID, 3, 5) == chosen(GRID, 3, 5)
    assert sorted(chosen(GRID, 3, 5)) != sorted(chosen(GRID, 3, 6))


def test_like_tests_do_not_choose_alike() -> None:
    assert chosen(GRID, 3, 5, "opencl") != chosen(GRID, 3, 5, "cuda")


def test_a_slice_of_all_rows_is_all_rows() -> None:
    assert sorted(chosen(GRID, 99, 3)) == list(range(len(GRID)))


@pytest.mark.parametrize("one_in", [1, 2, 3, 6])
@pytest.mark.parametrize(("rows", "count"), [(1, 1), (3, 1), (24, 2), (24, 7), (24, 24)])
def test_one_in_so_many_comes_in_turn_and_all_of_it(rows: int, count: int, one_in: int) -> None:
    shares = [share(count, one_in, number, "name")[0] for number in range(one_in)]
    assert sum(shares) == count and max(shares) - min(shares) <= 1
    met = set[int]()
    for number in range(one_in * rows):
        some, turn = share(count, one_in, number, "name")
        met |= set(chosen(GRID[:rows], some, turn, "name"))
    assert met == set(range(rows))


@pytest.mark.parametrize("one_in", [2, 3, 4, 8, 10])
def test_turns_are_met_by_what_itself_runs_only_in_some_slices(one_in: int) -> None:
    for first in range(0, 6 * one_in, one_in):
        assert {turn_of(n, one_in) for n in range(first, first + one_in)} == set(range(one_in))
    for every in (2, 3, 4, 8):
        some = range(1, 100 * one_in * every, every)
        assert {turn_of(number, one_in) for number in some} == set(range(one_in)), every


def item(name: str, place: int = 0, written: str = "here", **marks: int) -> Any:
    """A set of a test, as pytest collects it."""
    found = {mark: SimpleNamespace(args=(value,)) for mark, value in marks.items()}
    return SimpleNamespace(
        nodeid=f"tests/{name}[{place}]",
        function=SimpleNamespace(__module__=written),
        module=SimpleNamespace(__name__="here"),
        callspec=SimpleNamespace(params={"place": place}),
        get_closest_marker=found.get,
    )


@pytest.mark.parametrize(
    ("written", "marks", "one_in"),
    [
        ("here", {}, 1),
        ("here", {"slice": 2}, 3),
        ("here", {"turns": 2}, 2),
        ("elsewhere", {}, AGAIN),
        ("elsewhere", {"turns": 2, "slice": 2}, 6 * AGAIN),
    ],
)
def test_a_slice_holds_what_the_marks_say(written: str, marks: dict[str, int], one_in: int) -> None:
    items = [item("a.py::test_a", place, written, **marks) for place in range(6)]
    slices = [list(sliced(items, number)) for number in range(6 * one_in)]
    assert sum(map(len, slices)) * one_in == len(items) * len(slices)
    assert {one.nodeid for some in slices for one in some} == {one.nodeid for one in items}


@pytest.mark.parametrize(("lengths", "marks", "one_in"), [(3, {}, 3), (2, {"turns": 5}, 5)])
def test_a_test_that_takes_long_is_in_as_many_times_fewer_slices(
    lengths: int, marks: dict[str, int], one_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "timings", lambda: {"tests/a.py::test_a": lengths * LONG})
    items = [item("a.py::test_a", place, **marks) for place in range(4)]
    slices = [list(sliced(items, number)) for number in range(4 * one_in)]
    assert sum(map(len, slices)) * one_in == len(items) * len(slices)
    assert {one.nodeid for some in slices for one in some} == {one.nodeid for one in items}


def test_what_is_left_to_the_proof_is_in_no_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "PROOF_ONLY", {"a.py::test_a": "for a reason"})
    assert not list(sliced([item("a.py::test_a")], 3))


def test_what_an_item_is_called_by_is_the_same_in_every_process() -> None:
    given = SimpleNamespace(params={"fault": sorted, "plant": chosen, "size": 3})
    item: Any = SimpleNamespace(callspec=given, nodeid="x")
    assert _values(item) == (
        "fault=<built-in function sorted>",
        "plant=<function chosen>",
        "size=3",
    )


class Config:
    """What pytest gives to whoever changes the items; keeps those that are left out."""

    def __init__(self) -> None:
        self.hook, self.left_out = self, list[Any]()

    def pytest_deselected(self, items: list[Any]) -> None:
        self.left_out += items


class Collected(SimpleNamespace):
    """An item, which is equal to itself alone."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]


def collected(name: str, place: int = 0, **marks: int) -> Any:
    """An item in a list of them."""
    return Collected(**vars(item(name, place, **marks)))


def test_what_a_slice_does_not_hold_is_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(gate.SLICE, "4")
    config, items = Config(), [collected("a.py::test_a", place, slice=2) for place in range(6)]
    every = list(items)
    gate.pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    assert len(items) == 2 and len(config.left_out) == 4
    assert {id(one) for one in (*items, *config.left_out)} == {id(one) for one in every}


TESTS = Path(__file__).parent


@pytest.mark.parametrize("place", PROOF_ONLY)
def test_what_is_left_to_the_proof_is_a_test_with_a_reason(place: str) -> None:
    file, _, name = place.partition("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    again = re.findall(r"^from (test_\w+) import", text, re.MULTILINE)
    texts = [
        text,
        *(path.read_text(encoding="utf-8") for m in again for path in TESTS.glob(f"*/{m}.py")),
    ]
    assert any(f"def {name}(" in text for text in texts), f"{file} has no {name}"
    assert PROOF_ONLY[place]
