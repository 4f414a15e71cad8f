"""The memory plan: whatever a kernel reads is still there, and nothing is overwritten too early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from paper import compiled

import ptir
from ptir import functional as F
from ptir.backend.contract import Options
from ptir.codegen.compile import Compiled
from ptir.codegen.planning.buffer_slot import BufferSlot
from ptir.codegen.schedules.kernel import scratch_value
from ptir.types import BF16, F32, I32, spec
from random_programs import random_program
from together import together


class Memories:
    """Who wrote each byte last, by place."""

    def __init__(self, made: Compiled) -> None:
        self.made = made
        self.arena = [-1] * made.plan.arena
        self.others: dict[BufferSlot, int] = {}

    def nbytes(self, value: int) -> int:
        return max(1, self.made.fused.graph.type(value).nbytes)

    def write(self, place: BufferSlot, value: int, nbytes: int) -> None:
        if place.kind == "arena":
            assert place.number + nbytes <= len(self.arena)
            assert place.number % 128 == 0
            self.arena[place.number : place.number + nbytes] = [value] * nbytes
        else:
            self.others[place] = value

    def holds(self, place: BufferSlot, value: int) -> bool:
        if place.kind == "arena":
            found = set(self.arena[place.number : place.number + self.nbytes(value)])
            return found == {value}
        return self.others.get(place) == value


def check(made: Compiled) -> None:
    """Run the plan on paper: every read must find the value that it was promised."""
    plan, graph = made.plan, made.fused.graph
    memories = Memories(made)
    for value, place in plan.slots.items():
        if place.kind in ("input", "constant") and value not in _written(made):
            memories.write(place, value, 0)
    for number, kernel in enumerate(made.kernels):
        _copy(made, memories, number)
        if kernel is None:
            continue
        group = kernel.fusion
        for value in kernel.values:
            if value >= 0 and value not in group.outputs:
                assert memories.holds(plan.slots[value], value), f"%{value} is gone"
        for value in kernel.values:
            for exit in group.outputs if value >= 0 and value not in group.outputs else ():
                same = overlap(made, value, exit)
                assert not same or value in kernel.may_alias, f"%{exit} is written over %{value}"
        for exit, operand in group.output_aliases.items():
            assert memories.holds(plan.slots[exit], operand), f"%{operand} is not under %{exit}"
        for index, type in enumerate(kernel.scratch):
            value = scratch_value(group, index)
            memories.write(plan.slots[value], value, type.nbytes)
        for value in group.outputs:
            memories.write(plan.slots[value], value, memories.nbytes(value))
    _copy(made, memories, len(made.kernels))
    for value, place in zip(graph.block.outputs, plan.outputs, strict=True):
        assert memories.holds(place, value), f"output %{value} is gone"


def overlap(made: Compiled, value: int, exit: int) -> bool:
    """Whether two values lie in common memory, which for cache updates is meant."""
    first, second = (made.plan.slots[each] for each in (value, exit))
    if first.kind != "arena" or second.kind != "arena":
        return first == second
    sizes = [max(1, made.fused.graph.type(each).nbytes) for each in (value, exit)]
    return first.number < second.number + sizes[1] and second.number < first.number + sizes[0]


def _written(made: Compiled) -> set[int]:
    return {v for kernel in made.kernels if kernel for v in kernel.fusion.outputs}


def _copy(made: Compiled, memories: Memories, number: int) -> None:
    for copy in made.plan.copies[number]:
        value = next(
            v for v, p in made.plan.slots.items() if memories_at(memories, p, v, copy.source)
        )
        memories.write(copy.target, value, copy.nbytes)


def memories_at(memories: Memories, place: BufferSlot, value: int, source: BufferSlot) -> bool:
    return place == source and value >= 0 and memories.holds(place, value)


@together()
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
    assert made.plan.outputs == (BufferSlot("input", 0),)
    assert not any(made.plan.copies)


def test_a_cache_that_is_not_donated_is_copied_first() -> None:
    made = compiled(ptir.capture(update, *CACHE))
    check(made)
    assert made.plan.outputs == (BufferSlot("output", 0),)
    assert [copy.source for copy in made.plan.copies[0]] == [BufferSlot("input", 0)]


def test_a_cache_that_is_two_inputs_at_once_is_copied_first() -> None:
    options = Options(donated=frozenset((0,)), aliases=((0, 1),))
    types = (CACHE[0], CACHE[0], *CACHE[2:])
    made = compiled(ptir.capture(lambda c, n, s, k: F.cache_update(c, n, s, k), *types), options)
    check(made)
    assert made.plan.outputs == (BufferSlot("output", 0),)
    assert [copy.source for copy in made.plan.copies[0]] == [BufferSlot("input", 0)]


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
    assert made.plan.outputs == (BufferSlot("output", 0), BufferSlot("output", 1))


def test_an_input_that_is_returned_is_copied() -> None:
    made = compiled(ptir.capture(lambda x: x, spec("f32", 4)))
    check(made)
    assert made.plan.outputs == (BufferSlot("output", 0),)


def test_memories_that_do_not_live_at_once_share_the_arena() -> None:
    def chain(x: object) -> object:
        for _ in range(6):
            x = F.softmax(x.transpose(1, 0), axis=1)
        return x

    made = compiled(ptir.capture(chain, spec("f32", 32, 32)))
    check(made)
    assert made.plan.arena == 2 * 32 * 32 * 4


SQUARE = spec("f32", 32, 32)


def test_a_map_in_the_arena_is_written_over_what_it_reads() -> None:
    def body(x: Any, y: Any) -> Any:
        first = x @ y
        halves = first.sum(axis=0), first * first.sum(axis=0)  # two kernels read the product
        return halves[0], halves[1].transpose(1, 0) @ x

    made = compiled(ptir.capture(body, SQUARE, SQUARE))
    check(made)
    (kernel,) = (kernel for kernel in made.kernels if kernel is not None and kernel.may_alias)
    (exit,), (operand,) = kernel.fusion.outputs, kernel.may_alias
    assert made.plan.slots[exit] == made.plan.slots[operand]
    assert made.plan.arena < 2 * SQUARE.nbytes


def test_a_map_is_not_written_over_what_has_fewer_bytes() -> None:
    def body(x: Any, y: Any) -> Any:
        first = F.cast(x @ y, dtype=BF16)
        sums = first.sum(axis=0)
        return sums, (F.cast(first, dtype=F32) * F.cast(sums, dtype=F32)).transpose(1, 0) @ x

    made = compiled(ptir.capture(body, SQUARE, SQUARE))
    check(made)
    assert [kernel.family for kernel in made.kernels if kernel is not None].count("map") == 1
    assert not any(kernel.may_alias for kernel in made.kernels if kernel is not None)


@pytest.mark.parametrize("donated", [False, True])
def test_a_donated_input_becomes_the_output_of_a_map(donated: bool) -> None:
    options = Options(donated=frozenset((0,) if donated else ()))
    made = compiled(ptir.capture(lambda x, y: x * 2.0 + y, SQUARE, SQUARE), options)
    check(made)
    assert made.plan.outputs == (BufferSlot("input", 0) if donated else BufferSlot("output", 0),)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x.transpose(1, 0) * 2.0,
        lambda x: x[::-1] + x,
        lambda x: x[:, :1] + x,
        lambda x: F.cast(x, dtype=I32),
        lambda x: (x * 2.0).reshape(1024),
        lambda x: (x * 2.0)[:16],
        lambda x: (x * 2.0, x),
        lambda x: (x * 2.0, x.sum(axis=0)),
    ],
    ids=["turned", "reversed", "spread", "other dtype", "reshaped", "part", "kept", "read later"],
)
def test_a_donated_input_that_is_still_needed_is_not_written_over(body: Any) -> None:
    made = compiled(ptir.capture(body, SQUARE), Options(donated=frozenset((0,))))
    check(made)
    assert made.plan.outputs[0] == BufferSlot("output", 0)


def test_inputs_that_may_be_one_handle_are_not_written_over() -> None:
    options = Options(donated=frozenset((0, 1)), aliases=((0, 1),))
    made = compiled(ptir.capture(lambda x, y: x * 2.0 + y, SQUARE, SQUARE), options)
    check(made)
    assert made.plan.outputs == (BufferSlot("output", 0),)


def test_a_planted_takeover_of_what_is_read_elsewhere_is_found() -> None:
    made = compiled(ptir.capture(lambda x: x[::-1] + x, SQUARE), Options(donated=frozenset((0,))))
    (kernel,) = made.kernels
    assert kernel is not None and not kernel.may_alias
    slots = {**made.plan.slots, kernel.fusion.outputs[0]: BufferSlot("input", 0)}
    planted = replace(made, plan=replace(made.plan, slots=slots))
    with pytest.raises(AssertionError, match="is written over %0"):
        check(planted)
