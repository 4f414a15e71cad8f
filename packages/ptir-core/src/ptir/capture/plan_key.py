"""What a plan is cached under, and which part of that differs where none is found."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Final, NamedTuple

from ptir.backend.contract import Options
from ptir.ir.program import Program
from ptir.ops.policies import Override, Overrides
from ptir.types import TensorType

STALE: Final = "its device was lost, its weights were cut, or implementations were timed anew"
"""Why a plan of the same key is made again."""


class PlanKey(NamedTuple):
    """Everything that a plan depends on; the program itself, so that a hit is sure."""

    program: Program
    target: str
    device: int
    options: Options
    overrides: Overrides
    pipeline: str


def why_missed(key: PlanKey, known: Collection[PlanKey]) -> str:
    """What the known key that is nearest differs in, for people."""
    if not known:
        return "nothing is compiled yet"
    # The latest of those that differ least: who asks again usually asks for what came last.
    found = min(reversed([*known]), key=lambda one: _distance(key, one))
    return "; ".join(_differences(key, found)) or f"the plan is stale: {STALE}"


def _distance(key: PlanKey, known: PlanKey) -> tuple[int, bool]:
    others = sum(a != b for a, b in zip(key[1:], known[1:], strict=True))
    same = key.program.digest == known.program.digest
    return others + (not same), key.program.inputs != known.program.inputs


def _differences(key: PlanKey, known: PlanKey) -> Iterator[str]:
    if key.program.digest != known.program.digest:
        yield f"program: {_program_difference(key.program, known.program)}"
    for name in ("target", "device", "overrides", "pipeline"):
        if getattr(key, name) != getattr(known, name):
            yield f"{name} {_short(getattr(key, name))}, known {_short(getattr(known, name))}"
    for one in fields(Options):
        now, before = getattr(key.options, one.name), getattr(known.options, one.name)
        if now != before:
            yield f"options.{one.name} {_short(now)}, known {_short(before)}"


def _program_difference(program: Program, known: Program) -> str:
    now, before = program.inputs, known.inputs
    if now == before:
        return "other instructions on the same inputs"
    return types_difference(now, before)


def types_difference(now: tuple[TensorType, ...], before: tuple[TensorType, ...]) -> str:
    """The first types that differ in two lists."""
    if len(now) != len(before):
        return f"{len(now)} inputs, known {len(before)}"
    number = next(n for n, pair in enumerate(zip(now, before, strict=True)) if pair[0] != pair[1])
    return f"input {number} is {now[number]}, known {before[number]}"


def _short(value: object) -> str:
    if isinstance(value, tuple) and value and all(isinstance(one, Override) for one in value):
        text = "; ".join(map(str, value))
    else:
        text = repr(value) if not isinstance(value, frozenset) else repr(sorted(value))
    return text if len(text) <= 80 else f"{text[:77]}..."
