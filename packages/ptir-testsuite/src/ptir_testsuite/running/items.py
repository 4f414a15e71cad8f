"""What can be run as one row of a report: cases, refusals, composites, models, programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from ptir.ops import OPS
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.composites import CALLS, CompositeCall
from ptir_testsuite.corpus.derivation import corpus
from ptir_testsuite.corpus.edited import EditedProgram
from ptir_testsuite.corpus.gate import everything, in_turn, sliced
from ptir_testsuite.corpus.models import ModelRun, model_runs
from ptir_testsuite.corpus.profiles import names_of, profiles_of
from ptir_testsuite.corpus.selection import Matches
from ptir_testsuite.corpus.stored import Stored, stored
from ptir_testsuite.corpus.sweeps import Sweep, sweeps
from ptir_testsuite.corpus.weights import WeightCall, weight_calls
from ptir_testsuite.running.execute import Setting, run_case
from ptir_testsuite.running.kinds.composites import run_composite
from ptir_testsuite.running.kinds.edited import run_edited, run_edited_together
from ptir_testsuite.running.kinds.lifetime import Lifetime, lifetimes, run_lifetime
from ptir_testsuite.running.kinds.models import profiles as model_profiles
from ptir_testsuite.running.kinds.models import run_model
from ptir_testsuite.running.kinds.programs import (
    RandomProgram,
    run_program,
    run_programs,
    run_stored,
)
from ptir_testsuite.running.kinds.refusals import Refusal, refusals, run_refusal
from ptir_testsuite.running.kinds.sweeps import run_sweep, sweep_profiles
from ptir_testsuite.running.kinds.weights import run_weights, weight_profiles
from ptir_testsuite.running.outcomes import Row
from ptir_testsuite.running.together import run_cases

Item = (
    Case
    | Sweep
    | Refusal
    | CompositeCall
    | WeightCall
    | ModelRun
    | Lifetime
    | RandomProgram
    | EditedProgram
    | Stored
)


def items(programs: int, seed: int = 0, first: int = 0) -> Iterator[Item]:
    """Cases, sweeps, refusals, composites, weights, models, lifetimes, regressions, programs."""
    yield from _derived(tuple((op.name, id(op)) for op in OPS.values()))
    yield from composites()
    yield from weight_calls()
    yield from model_runs()
    yield from lifetimes()
    yield from stored()
    yield from random_programs(programs, seed, first)


@cache
def _derived(ops: tuple[tuple[str, int], ...]) -> tuple[Case | Sweep | Refusal, ...]:
    """What comes of the records of the ops that are defined now; deriving it takes seconds."""
    return (*corpus(), *sweeps(), *refusals())


def composites() -> Iterator[CompositeCall]:
    """Every call of the table of composites."""
    return (CompositeCall(name, n) for name, rows in CALLS.items() for n in range(len(rows)))


def random_programs(count: int, seed: int = 0, first: int = 0) -> Iterator[RandomProgram]:
    """Programs ``first`` to ``first + count - 1`` of a seed."""
    return (RandomProgram(seed, number) for number in range(first, first + count))


def hashed(everything: Iterable[Item]) -> Iterator[Case | Sweep | ModelRun | Lifetime]:
    """The items that the hash of the corpus is of."""
    return (item for item in everything if isinstance(item, Case | Sweep | ModelRun | Lifetime))


AT_ONCE: Final = 4
"""Programs of a group: those of a seed from a multiple of it on. 16 would cost a tenth less."""

PROGRAMS_IN_TURN: Final = 5
"""A slice holds one in so many of the groups of random programs."""

EDITED_AT_ONCE: Final = 32
"""The same of edited programs, of which about one in three is still a program."""

T = TypeVar("T")
Spoken = tuple[str, str, tuple[str, ...]]
"""The op, the call for a reader, and the dtypes."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """What is known of one kind of item: how it runs, its name, its profiles, what ``-k`` finds."""

    run: Callable[[T, Setting], Row]
    spoken: Callable[[T], Spoken]
    profiles: Callable[[T], frozenset[str]]
    words: Callable[[T], Iterable[str]]
    several: Callable[[Sequence[T], Setting], Iterator[Row]] | None = None
    """Runs several for less than one by one, where there is such a way."""
    group: Callable[[T], object] = attrgetter("id")
    """What those have in common that are run together."""
    at_once: Callable[[T], object] | None = None
    """The same where a run lets more be compiled at once than it must."""
    in_slice: Callable[[Sequence[Any], int], Iterable[Any]] = everything
    """What of them a slice of a number holds."""


def _of_dtypes(item: CompositeCall | Lifetime) -> frozenset[str]:
    return profiles_of(OPS["add"], names_of(item.dtypes))


def _case_words(case: Case) -> Iterable[str]:
    return case.call, *case.dtypes, case.origin, case.form, case.layout, *sorted(profiles(case))


def _programs_in_turn(
    items: Sequence[RandomProgram], number: int, one_in: int
) -> Iterator[RandomProgram]:
    """One in so many of the groups of programs that are compiled together."""
    found = [tuple(group) for _, group in groupby(items, lambda item: item.number // AT_ONCE)]
    turns = max(1, min(one_in, len(found)))
    return (item for group in found[number % turns :: turns] for item in group)


def _stored_words(item: Stored) -> Iterable[str]:
    ops = dict.fromkeys(i.op for i in item.program.main.instructions)
    return *item.dtypes, *ops, *sorted(item.profiles)


KINDS: Final[Mapping[type, Kind[Any]]] = {
    Case: Kind[Case](
        run_case,
        lambda item: (item.op, item.call, item.dtypes),
        lambda item: profiles_of(OPS[item.op], names_of(item.dtypes)),
        _case_words,
        run_cases,
        at_once=lambda item: "any",
        in_slice=sliced,
    ),
    Sweep: Kind[Sweep](
        run_sweep,
        lambda item: (item.op, item.call, item.dtypes),
        sweep_profiles,
        lambda item: (item.call, *item.dtypes, *sorted(sweep_profiles(item)), "sweep"),
    ),
    Refusal: Kind[Refusal](
        run_refusal,
        lambda item: (item.op, item.text, ()),
        lambda item: profiles_of(OPS[item.op], names_of(())),
        lambda item: (item.text, item.call.label, "refusal"),
        in_slice=in_turn(8, attrgetter("op")),
    ),
    CompositeCall: Kind[CompositeCall](
        run_composite,
        lambda item: (item.name, item.call, item.dtypes),
        _of_dtypes,
        lambda item: item.dtypes,
        in_slice=in_turn(2, attrgetter("name")),
    ),
    WeightCall: Kind[WeightCall](
        run_weights,
        lambda item: ("weights", item.call, item.dtypes),
        weight_profiles,
        lambda item: (item.call, *item.dtypes, "quantized"),
        in_slice=in_turn(15, lambda item: ""),
    ),
    ModelRun: Kind[ModelRun](
        run_model,
        lambda item: ("model", item.call, item.dtypes),
        model_profiles,
        in_slice=in_turn(10, lambda item: ""),
        words=lambda item: (item.call, *item.dtypes, *sorted(model_profiles(item))),
    ),
    Lifetime: Kind[Lifetime](
        run_lifetime,
        lambda item: ("lifetime", item.call, item.dtypes),
        _of_dtypes,
        lambda item: item.dtypes,
    ),
    RandomProgram: Kind[RandomProgram](
        run_program,
        lambda item: ("program", item.id, ()),
        lambda item: frozenset(),  # drawn within whatever is claimed
        lambda item: (),
        run_programs,
        lambda item: (item.seed, item.number // AT_ONCE),
        in_slice=lambda items, number: _programs_in_turn(items, number, PROGRAMS_IN_TURN),
    ),
    EditedProgram: Kind[EditedProgram](
        run_edited,
        lambda item: ("program", item.id, ()),
        lambda item: frozenset(),
        lambda item: (),
        run_edited_together,
        lambda item: (item.seed, item.number // EDITED_AT_ONCE),
    ),
    Stored: Kind[Stored](
        run_stored,
        lambda item: ("program", item.id, item.dtypes),
        lambda item: item.profiles,
        _stored_words,
    ),
}


def profiles(item: Item) -> frozenset[str]:
    """The profiles that an item belongs to."""
    return KINDS[type(item)].profiles(item)


def described(item: Item) -> str:
    """The text that ``-k`` searches: id, call, dtypes, origin and profiles."""
    return " ".join((item.id, *KINDS[type(item)].words(item)))


def selected(
    found: Iterator[Item], claims: frozenset[str] | None, matches: Matches | None
) -> Iterator[Item]:
    """The items within the profiles ``claims`` (None: all) that ``matches`` (None: all)."""
    for item in found:
        within = claims is None or profiles(item) <= claims
        if within and (matches is None or matches(described(item))):
            yield item


def run_item(item: Item, setting: Setting) -> Row:
    """Run one item."""
    return KINDS[type(item)].run(item, setting)


def in_slice(found: Sequence[Item], number: int) -> list[Item]:
    """What slice ``number`` holds of the items, in their order."""
    kinds = groupby(found, type)
    return [item for kind, alike in kinds for item in KINDS[kind].in_slice(tuple(alike), number)]


def groups(found: Iterable[Item], at_once: bool = False) -> Iterator[Sequence[Item]]:
    """``found`` in order, divided into what ``run_group`` takes.

    Which items are run together depends on nothing but the items and ``at_once``.
    """
    return (tuple(alike) for _, alike in groupby(found, lambda item: group_of(item, at_once)))


def group_of(item: Item, at_once: bool = False) -> object:
    """What an item has in common with those that are run together with it, and no other has."""
    kind = KINDS[type(item)]
    group = kind.at_once if at_once and kind.at_once else kind.group
    return type(item), group(item)


def run_group(group: Sequence[Item], setting: Setting) -> Iterator[Row]:
    """Run the items of a group, which are of one kind."""
    several = KINDS[type(group[0])].several
    if several is not None and len(group) > 1:
        return several(group, setting)
    return (run_item(item, setting) for item in group)


def spoken(item: Item) -> Spoken:
    """The op, the call for a reader and the dtypes of an item."""
    return KINDS[type(item)].spoken(item)
