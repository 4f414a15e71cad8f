"""Which parameters are resident when: the table of a program, and budgets as texts."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from ptir.errors import UsageError
from ptir.params.pages import MappedPages
from ptir.params.residency import ResidencySchedule, ResidentSet, schedule, smallest_room
from ptir.params.streaming import memory_budget

SIZES = {"a": 4, "b": 3, "c": 5, "d": 2, "e": 4}
LAUNCHES = [("a",), (), ("b", "d"), ("c",), ("a",), ("e",)]


def followed(table: ResidencySchedule) -> None:
    """Do what the table says, from the end of a run on: what is needed must be there."""
    there = {*table.stages[-1].needed, *table.stages[-1].fetched}
    for turn in range(3):
        for stage in table.stages:
            assert turn == 0 or {*stage.needed} - there == {*stage.late}
            there = there - {*stage.dropped} | {*stage.needed} | {*stage.fetched}
            held = sum(table.sizes[name] for name in there)
            assert turn == 0 or held == stage.resident


@pytest.mark.parametrize("room", range(5, 22))
def test_whatever_the_room_is_the_table_is_a_legal_one(room: int) -> None:
    table = schedule(LAUNCHES, SIZES, room)
    ends = [stage.first for stage in table.stages] + [len(LAUNCHES)]
    assert ends[0] == 0
    assert [stage.end for stage in table.stages] == ends[1:], "every launch is in one stage"
    for stage in table.stages:
        read = {name for names in LAUNCHES[stage.first : stage.end] for name in names}
        assert read == {*stage.needed}
        assert stage.resident <= room
        assert not {*stage.dropped} & {*stage.needed}
    assert table.peak <= room
    followed(table)


def test_what_fits_is_never_read_again() -> None:
    table = schedule(LAUNCHES, SIZES, sum(SIZES.values()))
    assert table.read == 0
    assert all(not stage.dropped for stage in table.stages)


def test_the_next_stage_is_fetched_while_this_one_runs() -> None:
    table = schedule([("a",), ("b",), ("c",)], {"a": 4, "b": 4, "c": 4}, 8)
    assert [stage.fetched for stage in table.stages] == [("b",), ("c",), ("a",)]
    assert all(not stage.late for stage in table.stages)
    assert table.read == 12


def test_without_room_for_two_the_next_one_is_waited_for() -> None:
    table = schedule([("a",), ("b",)], {"a": 4, "b": 4}, 7)
    assert [(stage.late, stage.fetched) for stage in table.stages] == [(("a",), ()), (("b",), ())]


def test_what_was_used_longest_ago_goes_first() -> None:
    resident = ResidentSet()
    for name in "abc":
        resident.use({name: 2}, 6)
    resident.use({"a": 2}, 6)
    assert resident.use({"d": 2}, 6) == (("b",), ("d",))
    assert resident.use({"e": 4}, 6) == (("c", "a"), ("e",))
    assert (resident.nbytes, resident.peak) == (6, 6)


def test_what_does_not_fit_beside_what_is_kept_drops_nothing() -> None:
    resident = ResidentSet()
    resident.use({"a": 2}, 6)
    resident.use({"b": 2}, 6)
    assert resident.use({"c": 5}, 6, kept=("b",)) == ((), ())
    assert {*resident} == {"a", "b"}


def test_the_smallest_room_is_that_of_the_largest_launch() -> None:
    assert smallest_room(LAUNCHES, SIZES) == 5
    assert smallest_room([()], SIZES) == 0


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [
        ("2GiB", 2 << 30),
        ("1.5 MiB", 3 << 19),
        ("10kB", 10_000),
        ("7B", 7),
        ("4096", 4096),
        ("1gib", 1 << 30),
        (4096, 4096),
    ],
)
def test_a_budget_is_a_number_with_or_without_a_unit(given: str | int, nbytes: int) -> None:
    assert memory_budget(given) == nbytes


@pytest.mark.parametrize(
    "given", ["", "GiB", "-1", -1, "two", "1XiB", "1e9", "1 2", "nan", True, "٣"]
)
def test_what_is_no_number_of_bytes_is_refused(given: str | int) -> None:
    with pytest.raises(UsageError, match=r"device memory .* with a unit: kB, .* such as 2GiB"):
        memory_budget(given)


@pytest.mark.parametrize("given", ["0", 0, "0GiB", "0.1B"])
def test_no_bytes_are_refused(given: str | int) -> None:
    with pytest.raises(UsageError, match="that is 0 bytes"):
        memory_budget(given)


def resident_bytes(mapping: mmap.mmap) -> int:
    """Bytes of a mapping that lie in this process."""
    first = np.frombuffer(mapping, np.uint8, 1).ctypes.data
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith(f"{first:08x}-") or line.startswith(f"{first:x}-"):
            return next(int(one.split()[1]) << 10 for one in lines if one.startswith("Rss:"))
    raise AssertionError("it is mapped nowhere")


def test_pages_that_are_dropped_leave_the_process_and_come_back(tmp_path: Path) -> None:
    values = np.arange(1 << 18, dtype=np.float32)
    (tmp_path / "values").write_bytes(values.tobytes())
    with (tmp_path / "values").open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapping, np.float32).reshape(512, 512)[100:300]
    pages = MappedPages.of(array)
    assert pages is not None
    total = float(array.sum())
    before = resident_bytes(mapping)
    pages.drop()
    assert resident_bytes(mapping) <= before - array.nbytes + mmap.PAGESIZE
    pages.read_ahead()
    assert float(array.sum()) == total


def test_memory_of_no_file_has_no_pages() -> None:
    assert MappedPages.of(np.ones(3)) is None
    assert MappedPages.of(np.frombuffer(bytes(8), np.uint8)) is None
