"""Tuning a model: every functional of its programs is timed with each of its implementations.

What was timed goes to the records of ``ptir.passes.remembered``, and that it was done for the model
beside them. From then on its calls follow what was fastest: those of the model that was tuned, and
of every one that is loaded later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ptir import events
from ptir.backend.folders import require_writable
from ptir.capture.plan import checks_indices
from ptir.ir.program import Program
from ptir.ops.implementations import FUNCTIONALS
from ptir.ops.overriding import active_overrides, in_force
from ptir.ops.policies import Override, Overrides, Policy, merged, origin
from ptir.passes import PassContext, optimize
from ptir.passes.benchmark import kernel_version
from ptir.passes.remembered import TuningRecord, remembered
from ptir.passes.tuned import remember_tuned, tuned_overrides
from ptir.runtime.kinds import kind_of

if TYPE_CHECKING:
    from ptir.runtime.handle import Model

KEPT: Final = 4096
"""Most choices that are kept of one functional: those of many models."""


@dataclass(frozen=True)
class Chosen:
    """One kind of call in a model's programs: what was chosen for it, and on whose behalf."""

    functional: str
    implementation: str
    reason: str


@dataclass(frozen=True)
class TuneReport:
    """What was timed for a model, and what its programs came to."""

    programs: int
    seconds: float
    chosen: tuple[Chosen, ...]
    records: tuple[TuningRecord, ...]
    """All that is remembered of these functionals on the device."""
    left: Mapping[str, int]
    """Functionals that stay with the default, and the bytes of weights that would be added else.

    A weight that prompts read in one form and decoding in another would be resident twice.
    """


def tune(
    model: Model,
    tokens: int | None = None,
    batch: int = 1,
    heard: Callable[[Chosen], object] = lambda chosen: None,
) -> TuneReport:
    """Time the implementations of every functional in the model's programs, and follow the best.

    The programs are those of prompts and decoding steps of ``batch`` rows, on caches for up to
    ``tokens`` tokens; of up to ``batch`` texts of up to so many tokens each, or windows of speech;
    or of ``batch`` images (``ptir.runtime.kinds``). What the model, the environment or the caller
    asks for stays as it is and is not timed. Raises ``UsageError`` where the cache folder cannot be
    written.
    """
    require_writable("what is timed")
    began = time.perf_counter()
    programs = [one.program for one in kind_of(model).programs(model, tokens, batch)]
    with _untuned(model):
        chosen, records = _timed(programs, model, heard)
        decided = sorted({one.functional for one in records if one.decided})
        with model.policies():
            before = _resident(programs, model, ())
            grown = {name: _resident(programs, model, (name,)) - before for name in decided}
    left = {name: nbytes for name, nbytes in grown.items() if nbytes > 0}
    kept = tuple(name for name in decided if name not in left)  # others follow their defaults
    path = str(model.checkpoint.path)
    remember_tuned(path, kept, f"{model.target.backend.name}:{model.target.device.index}")
    model.overrides = merged(tuned_overrides(path), _without_tuned(model.overrides))
    seconds = time.perf_counter() - began
    return TuneReport(len(programs), seconds, chosen, records, left)


def _timed(
    programs: Sequence[Program], model: Model, heard: Callable[[Chosen], object]
) -> tuple[tuple[Chosen, ...], tuple[TuningRecord, ...]]:
    """What is chosen for the calls of programs, timed where it was not, and all records of it."""
    source = origin("tune", "ptir tune")
    asked = [Override(name, Policy("benchmark", cache=KEPT), origin=source) for name in FUNCTIONALS]
    chosen: dict[Chosen, None] = {}
    with model.policies(), in_force(asked):
        for program in programs:
            for one in choices(program, model):
                if one not in chosen:
                    chosen[one] = None
                    heard(one)
    names = {one.functional for one in chosen}
    where = model.target.backend.name, model.target.device.name
    version = kernel_version(_context(model))
    records = tuple(
        one
        for one in remembered()
        if (one.backend, one.device, one.version) == (*where, version) and one.functional in names
    )
    return (*chosen,), records


@contextmanager
def _untuned(model: Model) -> Iterator[None]:
    """Inside, the model follows nothing that was timed before."""
    before = model.overrides
    model.overrides = _without_tuned(before)
    try:
        yield
    finally:
        model.overrides = before


def _without_tuned(given: Overrides) -> Overrides:
    rank = origin("tune").rank
    return tuple(one for one in given if one.origin.rank != rank)


def _resident(programs: Sequence[Program], model: Model, tuned: Sequence[str]) -> int:
    """Bytes of all parameters that the programs read, in the forms in which they read them.

    The functionals ``tuned`` are as was timed.
    """
    source = origin("tune", "ptir tune")
    asked = [Override(name, Policy("tuned"), origin=source) for name in tuned]
    held: dict[str, int] = {}
    with in_force(asked):
        for program in programs:
            made = optimize(program, _context(model))
            typed = zip(made.ports, made.inputs, strict=True)
            held |= {port.name: type.nbytes for port, type in typed if port.kind == "parameter"}
    return sum(held.values())


def choices(program: Program, model: Model) -> list[Chosen]:
    """What is chosen for each kind of call of a program, under the policies in force."""
    found: list[Chosen] = []
    with _listening(found):
        optimize(program, _context(model))
    return found


def _context(model: Model) -> PassContext:
    target = model.target
    return PassContext(
        target.backend, target.device, active_overrides(), check_indices=checks_indices()
    )


@contextmanager
def _listening(found: list[Chosen]) -> Iterator[None]:
    def hear(event: Any) -> None:
        if isinstance(event, events.ImplementationChosen):
            found.append(Chosen(event.functional, event.implementation, event.reason))

    remove = events.subscribe(hear)
    try:
        yield
    finally:
        remove()
