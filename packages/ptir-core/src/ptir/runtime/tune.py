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
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ptir import events
from ptir.backend.contract import Derivation
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
    """Functionals that stay with the default, and the bytes of weights that would be held twice.

    That is so where prompts would read a weight in one form and decoding in another.
    """
    grown: Mapping[str, int]
    """Functionals that are faster with larger weights (transformed filters), by how many bytes."""


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
            before = _forms(programs, model, ())
            after = {name: _forms(programs, model, (name,)) for name in decided}
    left = _added(before, after, _held_twice)
    kept = tuple(name for name in decided if name not in left)  # others follow their defaults
    grown = _added(before, {name: after[name] for name in kept}, _resident)
    path = str(model.checkpoint.path)
    remember_tuned(path, kept, f"{model.target.backend.name}:{model.target.device.index}")
    model.overrides = merged(tuned_overrides(path), _without_tuned(model.overrides))
    seconds = time.perf_counter() - began
    return TuneReport(len(programs), seconds, chosen, records, left, grown)


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


@dataclass(frozen=True)
class _Form:
    """One parameter as programs read it: its bytes, and the stored ones that it is made of."""

    nbytes: int
    stored: frozenset[str]


Forms: TypeAlias = Mapping[str, _Form]
"""The parameters that programs read, by port."""


def _forms(programs: Sequence[Program], model: Model, tuned: Sequence[str]) -> Forms:
    """All parameters that the programs read, where the functionals ``tuned`` are as was timed."""
    source = origin("tune", "ptir tune")
    asked = [Override(name, Policy("tuned"), origin=source) for name in tuned]
    found: dict[str, _Form] = {}
    with in_force(asked):
        for program in programs:
            context = _context(model)
            made = optimize(program, context)
            for port, type in zip(made.ports, made.inputs, strict=True):
                if port.kind == "parameter":
                    found[port.name] = _Form(type.nbytes, _stored(port.name, context.derived))
    return found


def _stored(name: str, derived: Mapping[str, Derivation]) -> frozenset[str]:
    """The stored parameters behind a port."""
    if name not in derived:
        return frozenset((name,))
    ports = derived[name].ports
    return frozenset().union(*(_stored(port.name, derived) for port in ports))


def _resident(forms: Forms) -> int:
    """Bytes of all forms."""
    return sum(form.nbytes for form in forms.values())


def _held_twice(forms: Forms) -> int:
    """Bytes of what is held although a larger form of the same stored parameter is held too."""
    largest: dict[str, str] = {}
    for port, form in sorted(forms.items(), key=lambda item: item[1].nbytes):
        largest |= dict.fromkeys(form.stored, port)
    kept = {*largest.values()}
    return sum(form.nbytes for port, form in forms.items() if port not in kept)


def _added(
    before: Forms, after: Mapping[str, Forms], measure: Callable[[Forms], int]
) -> dict[str, int]:
    """The bytes that each functional adds to what was there before, where it does."""
    grown = {name: measure(forms) - measure(before) for name, forms in after.items()}
    return {name: nbytes for name, nbytes in grown.items() if nbytes > 0}


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
