"""The memory plan: whatever a kernel reads is still there, and nothing is overwritten too early."""

from __future__ import annotations

import pytest
from paper import compiled

import ptir
from ptir import functional as F
from ptir.backend.contract import Options
from ptir.codegen.compile import Compiled
from ptir.codegen.kernel import scratch_value
from ptir.codegen.plan import Place
from ptir.types import spec
from random_programs import random_program


class Memories:
    """Who wrote each byte last, by place."""

    def __init__(self, made: Compiled) -> None:
        self.made = made
        self.arena = [-1] * made.plan.arena
        self.others: dict[Place, int] = {}

    def nbytes(self, value: int) -> int:
        return max(1, self.made.fused.graph.type(value).nbytes)

    def write(self, place: Place, value: int, nbytes: int) -> None:
        if place.kind == "arena":
            assert place.number + nbytes <= len(self.arena)
            assert place.number % 128 == 0
            self.arena[place.number : place.number + nbytes] = [value] * nbytes
        else:
            self.others[place] = value

    def holds(self, place: Place, value: int) -> bool:
        if place.kind == "arena":
            found = set(self.arena[place.number : place.number + self.nbytes(value)])
            return found == {value}
        return self.others.get(place) == value


def check(made: Compiled) -> None:
    """Run the plan on paper: every read must find the value that it was promised."""
    plan, graph = made.plan, made.fused.graph
    memories = Memories(made)
    for value, place in plan.places.items():
        if place.kind in ("input", "constant") and value not in _written(made):
            memories.write(place, value, 0)
    for number, kernel in enumerate(made.kernels):
        _copy(made, memories, number)
        if kernel is None:
            continue
        group = kernel.group
        for value in kernel.values:
            if value >= 0 and value not in group.exits:
                assert memories.holds(plan.places[value], value), f"%{value} is gone"
        for exit, operand in group.shares.items():
            assert memories.holds(plan.places[exit], operand), f"%{operand} is not under %{exit}"
        for index, type in enumerate(kernel.scratch):
            value = scratch_value(group, index)
            memories.write(plan.places[value], value, type.nbytes)
        for value in group.exits:
            memories.write(plan.places[value], value, memories.nbytes(value))
    _copy(made, memories, len(made.kernels))
    for value, place in zip(graph.block.outputs, plan.outputs, strict=True):
        assert memories.holds(place, value), f"output %{value} is gone"


def _written(made: Compiled) -> set[int]:
    return {v for kernel in made.kernels if kernel for v in kernel.group.exits}


def _copy(made: Compiled, memories: Memories, number: int) -> None:
    for copy in made.plan.copies[number]:
        value = next(
            v for v, p in made.plan.places.items() if memories_at(memories, p, v, copy.source)
        )
        memories.write(copy.target, value, copy.nbytes)


def memories_at(memories: Memories, place: Place, value: int, source: Place) -> bool:
    return place == source and value >= 0 and memories.holds(place, value)


@pytest.mark.parametrize("seed", range(40))
def test_every_read_of_a_random_program_finds_its_value(seed: int) -> None:
    made = compiled(random_program(seed))
    check(made)


def update(cache: object, new: object, start: object, count: object) -> object:
    return F.cache_update(cache, new, start, count)


CACHE = (spec("f32", 1, 2, 8, 4), spec("f32", 1, 2, 3, 4), spec("i32", 1), spec("i32", 1))


def test_a_donated_cache_is_written_in_place() -> None:
    made = compiled(ptir.capture(update, *CACHE), Options(donated=frozenset((0,))))
    check(made)
    assert made.plan.outputs == (Place("input", 0),)
    assert not any(made.plan.copies)


def test_a_cache_that_is_not_donated_is_copied_first() -> None:
    made = compiled(ptir.capture(update, *CACHE))
    check(made)
    assert made.plan.outputs == (Place("output", 0),)
    assert [copy.source for copy in made.plan.copies[0]] == [Place("input", 0)]


def test_a_cache_that_is_two_inputs_at_once_is_copied_first() -> None:
    options = Options(donated=frozenset((0,)), aliases=((0, 1),))
    types = (CACHE[0], CACHE[0], *CACHE[2:])
    made = compiled(ptir.capture(lambda c, n, s, k: F.cache_update(c, n, s, k), *types), options)
    check(made)
    assert made.plan.outputs == (Place("output", 0),)
    assert [copy.source for copy in made.plan.copies[0]] == [Place("input", 0)]


def test_a_cache_that_is_read_again_later_is_copied_first() -> None:
    def twice(cache: object, new: object, start: object, count: object) -> object:
        first = F.cache_update(cache, new, start, count)
        return first, F.cache_update(cache, new, start + 1, count)

    made = compiled(ptir.capture(twice, *CACHE), Options(donated=frozenset((0,))))
    check(made)
    assert sorted(p.kind for p in made.plan.outputs) == ["input", "output"]


def test_one_value_returned_twice_is_two_memories() -> None:
    made = compiled(ptir.capture(lambda x: (x + 1.0,) * 2, spec("f32", 4)))
    check(made)
    assert made.plan.outputs == (Place("output", 0), Place("output", 1))


def test_an_input_that_is_returned_is_copied() -> None:
    made = compiled(ptir.capture(lambda x: x, spec("f32", 4)))
    check(made)
    assert made.plan.outputs == (Place("output", 0),)


def test_memories_that_do_not_live_at_once_share_the_arena() -> None:
    def chain(x: object) -> object:
        for _ in range(6):
            x = F.softmax(x.transpose(1, 0), axis=1)
        return x

    made = compiled(ptir.capture(chain, spec("f32", 32, 32)))
    check(made)
    assert made.plan.arena == 2 * 32 * 32 * 4
