"""What a slice holds: each need of each op once, and of all else something in turn."""

from __future__ import annotations

from collections import Counter

import pytest

from ptir.backend import Options, Target
from ptir.backend.contract import Device
from ptir.ops import OPS
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.derivation import corpus
from ptir_testsuite.corpus.gate import IN_TURN, covering, needs_of, window
from ptir_testsuite.running.items import (
    KINDS,
    PROGRAMS_IN_TURN,
    RandomProgram,
    in_slice,
    items,
    random_programs,
)
from ptir_testsuite.running.together import Compiled


@pytest.fixture(scope="module")
def cases():
    """Of some ops, each with needs of its own; deriving all of them takes seconds."""
    few = ("add", "sub", "mul", "exp", "log", "sin", "neg", "abs", "cast", "reduce", "pad", "sort")
    return {name: list(corpus((OPS[name],))) for name in few}


def test_one_slice_meets_every_need_of_every_op(cases):
    for op, mine in cases.items():
        owed = frozenset().union(*map(needs_of, mine))
        found = covering(mine, 7)
        assert frozenset().union(*map(needs_of, found)) == owed, op
        assert len(found) < len(mine) or len(mine) < 12, op


def test_every_slice_meets_the_ends_of_every_dtype(cases):
    for op in ("mul", "exp", "cast"):
        dtypes = {case.dtypes for case in cases[op] if case.origin == "edges"}
        assert len(dtypes) > 1, op
        for number in (7, 8):
            met = {c.dtypes for c in covering(cases[op], number) if c.origin == "edges"}
            assert met == dtypes, f"{op}: slice {number} has no edges of {dtypes - met}"


def test_another_slice_meets_needs_with_other_cases(cases):
    first, second = (
        {case.id for mine in cases.values() for case in covering(mine, n)} for n in (0, 1)
    )
    assert len(first & second) < 0.9 * len(first)


def test_slices_in_a_row_meet_everything():
    few = ("sort",)  # what needs ask for takes its time
    found = [
        item
        for item in items(200)
        if type(item) is not RandomProgram and (type(item) is not Case or item.op in few)
    ]
    by_kind = Counter(type(item).__name__ for item in found)
    met = {item.id for number in range(5, 5 + IN_TURN) for item in in_slice(found, number)}
    missed = Counter(type(item).__name__ for item in found if item.id not in met)
    assert not missed, f"of {by_kind} never in a slice: {missed}"


@pytest.mark.parametrize("count", (1, 7, 200))
def test_random_programs_take_turns_in_whole_groups(count):
    programs = tuple(random_programs(count))
    together = KINDS[RandomProgram].at_once or KINDS[RandomProgram].group
    slices = [in_slice(programs, number) for number in range(PROGRAMS_IN_TURN)]
    assert {item.id for one in slices for item in one} == {item.id for item in programs}
    assert all(slices) and (count < 200 or max(map(len, slices)) == 200 // PROGRAMS_IN_TURN)
    for one in slices:
        groups = {together(item) for item in one}
        assert [item for item in programs if together(item) in groups] == one


class Numbered:
    def __init__(self, number):
        self.id = f"case {number}"


@pytest.mark.parametrize(("count", "one_in"), ((1, 8), (5, 8), (20, 8), (24, 24), (0, 3)))
def test_a_window_has_its_share_and_goes_all_the_way_round(count, one_in):
    given = [Numbered(n) for n in range(count)]
    windows = [window(given, number, one_in) for number in range(one_in)]
    assert {item.id for one in windows for item in one} == {item.id for item in given}
    assert {len(one) for one in windows} <= {count // one_in, -(-count // one_in)} or count < one_in
    assert all(windows) or not count


class Compiler:
    """A backend that fails on programs of one op, and counts what it is asked for."""

    def __init__(self, trips_over=""):
        self.trips_over, self.asked, self.alone = trips_over, [], 0

    def refusal(self, query, device):
        return None

    def compile_all(self, orders, device):
        self.asked.append(len(orders))
        if any(p.main.instructions[0].op == self.trips_over for p, _ in orders):
            raise RuntimeError("tripped")
        return [("made", program) for program, _ in orders]

    def compile(self, program, device, options):
        self.alone += 1
        return "alone", program


def compiled(backend, cases):
    made = Compiled(Target(backend, Device(0, "paper", "cpu")))
    made.compile_all_of(cases)
    return [made.compile(case.program, None, Options(check_indices=False))[0] for case in cases]


def test_programs_are_compiled_at_once(cases):
    some = [mine[0] for mine in cases.values()]
    backend = Compiler()
    assert compiled(backend, some) == ["made"] * 12
    assert (backend.asked, backend.alone) == ([12], 0)


def test_one_that_cannot_be_compiled_leaves_the_others_together(cases):
    some = [cases[op][0] for op in ("add", "sub", "mul", "exp", "log", "sin", "neg", "abs")]
    backend = Compiler("exp")
    assert compiled(backend, some) == [*["made"] * 3, "alone", *["made"] * 4]
    assert backend.alone == 1 and len(backend.asked) == 7
