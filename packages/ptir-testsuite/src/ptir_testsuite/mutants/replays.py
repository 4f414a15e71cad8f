"""Planted faults around kernels: memory plans, replays, persistent kernels, caches of kernels."""

from __future__ import annotations

import re
from typing import Any

from ptir_testsuite.mutants.planting import planted

# --- the memory plan ---


@planted(
    "all intermediates lie at the start of the arena", "programs", "planning.plan:_Planner._offset"
)
def _(right: Any) -> Any:
    return lambda self, life, placed: 0


@planted("memory is handed on one step too early", "programs", "planning.plan:_Planner._pack")
def _(right: Any) -> Any:
    def pack(self: Any) -> int:
        for life in self.lives.values():
            life.last = max(life.first, life.last - 1)
        found: int = right(self)
        return found

    return pack


@planted(
    "a result takes over an operand that is read later",
    "programs",
    "planning.plan:_Planner._may_alias",
)
def _(right: Any) -> Any:
    def may(self: Any, operand: int, output: int, step: int, last: Any, fusion: Any) -> bool:
        life = self.lives[operand]
        return life.place is None and not any(value in fusion.outputs for value in life.values)

    return may


@planted(
    "a donation is written over although another input is the same",
    "lifetime-walk",
    "planning.plan:_Planner._is_given",
)
def _(right: Any) -> Any:
    def given(self: Any, life: Any) -> bool:
        place = life.place
        return place is not None and place.kind == "input" and place.number in self.options.donated

    return given


@planted("values are not copied where two outputs are one", "programs", "compile:Compiled._copies")
def _(right: Any) -> Any:
    return lambda self, steps: iter(())


# --- what a replay binds ---


@planted(
    "an input keeps the memory of the first run",
    "lifetime-walk",
    "launching.launches:KernelProgram._rebind",
)
def _(right: Any) -> Any:
    def rebind(self: Any, number: int, handle: Any) -> None:
        if not hasattr(self, "seen"):
            self.seen = {}
        right(self, number, self.seen.setdefault(number, handle))
        self._bound[number] = id(handle)

    return rebind


@planted(
    "an output keeps the memory of the first run",
    "add",
    "launching.launches:KernelProgram._bind_results",
)
def _(right: Any) -> Any:
    def bind(self: Any, results: Any) -> None:
        if not hasattr(self, "stuck"):
            self.stuck = results
        right(self, self.stuck)

    return bind


@planted(
    "every run hands out the results of the first",
    "lifetime-walk",
    "launching.launches:KernelProgram._made",
)
def _(right: Any) -> Any:
    def made(self: Any, inputs: Any) -> Any:
        if not hasattr(self, "first"):
            self.first = right(self, inputs)
        return self.first

    return made


# --- texts and caches ---


@planted(
    "kernels that differ in an attribute are written once",
    "programs",
    "planning.deduplicate:structural_key",
)
def _(right: Any) -> Any:
    def structural_key(plan: Any, fusion: Any) -> Any:
        (family, instructions, *rest), values = right(plan, fusion)
        return (family, tuple((op, *more) for op, _, *more in instructions), *rest), values

    return structural_key


READ = r"(= b\d+\[)[^];]*"
"""The place of an element that is read; kernels that differ in more would spoil others' memory."""


@planted(
    "the cache of built kernels overlooks where they read",
    "slice reverse",
    "artifact.binaries:binary_key",
)
def _(right: Any) -> Any:
    return lambda device, source: right(device, re.sub(READ, r"\1", source))


SLOW = r"\1 for (volatile int slow = 0; slow < 4000000; slow += 1) {}"
"""What holds a worker up at an item, so that another one is in the next phase before it is done."""


@planted(
    "workers do not wait between the phases of a persistent kernel",
    "programs",
    "artifact.source:persistent_text",
    "artifact.source:device_function",
    on=("opencl",),
)
def _(right: Any) -> Any:
    def text(*given: Any) -> str:
        found = re.sub(r"(for \(int looks = 0;) .*? < items;", r"\1 0;", right(*given))
        return re.sub(r"(for \(int item = .*?\{)", SLOW, found)

    return text


@planted(
    "the phases of a persistent kernel run in reverse", "programs", "compile:phases", on=("opencl",)
)
def _(right: Any) -> Any:
    return lambda *given: tuple(reversed(right(*given)))
