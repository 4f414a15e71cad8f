"""What can be run as one row of a report: cases, refusals, composites, models, programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from ptir.ops import OPS
from ptir_testsuite.case import Case
from ptir_testsuite.composites import CALLS, CompositeCall, run_composite
from ptir_testsuite.corpus import corpus
from ptir_testsuite.execute import Setting, run_case
from ptir_testsuite.lifetime import Lifetime, lifetimes, run_lifetime
from ptir_testsuite.models import ModelRun, model_profiles, model_runs, run_model
from ptir_testsuite.outcomes import Row
from ptir_testsuite.profiles import names_of, profiles_of
from ptir_testsuite.programs import RandomProgram, Stored, run_program, run_stored, stored
from ptir_testsuite.refusals import Refusal, refusals, run_refusal
from ptir_testsuite.selection import Matches

Item = Case | Refusal | CompositeCall | ModelRun | Lifetime | RandomProgram | Stored


def items(programs: int, seed: int = 0, first: int = 0) -> Iterator[Item]:
    """The corpus, refusals, composites, models, lifetimes, regressions, then random programs."""
    yield from _derived(tuple((op.name, id(op)) for op in OPS.values()))
    yield from composites()
    yield from model_runs()
    yield from lifetimes()
    yield from stored()
    yield from random_programs(programs, seed, first)


@cache
def _derived(ops: tuple[tuple[str, int], ...]) -> tuple[Case | Refusal, ...]:
    """The corpus and the refusals of the ops that are defined now; deriving them takes seconds."""
    return (*corpus(), *refusals())


def composites() -> Iterator[CompositeCall]:
    """Every call of the table of composites."""
    return (CompositeCall(name, n) for name, rows in CALLS.items() for n in range(len(rows)))


def random_programs(count: int, seed: int = 0, first: int = 0) -> Iterator[RandomProgram]:
    """Programs ``first`` to ``first + count - 1`` of a seed."""
    return (RandomProgram(seed, number) for number in range(first, first + count))


def hashed(everything: Iterable[Item]) -> Iterator[Case | ModelRun | Lifetime]:
    """The items that the hash of the corpus is of."""
    return (item for item in everything if isinstance(item, Case | ModelRun | Lifetime))


def profiles(item: Item) -> frozenset[str]:
    """The profiles that an item belongs to."""
    if isinstance(item, RandomProgram):  # which is drawn within whatever is claimed
        return frozenset()
    if isinstance(item, Stored):
        return item.profiles
    if isinstance(item, ModelRun):
        return model_profiles(item)
    if isinstance(item, CompositeCall | Lifetime):
        return profiles_of(OPS["add"], names_of(item.dtypes))
    dtypes = item.dtypes if isinstance(item, Case) else ()
    return profiles_of(OPS[item.op], names_of(dtypes))


def described(item: Item) -> str:
    """The text that ``-k`` searches: id, call, dtypes, origin and profiles."""
    if isinstance(item, ModelRun):
        return " ".join((item.id, item.call, *item.dtypes, *sorted(profiles(item))))
    if isinstance(item, RandomProgram | CompositeCall | Lifetime):
        return f"{item.id} {' '.join(spoken(item)[2])}"
    if isinstance(item, Stored):
        ops = dict.fromkeys(i.op for i in item.program.main.instructions)
        return " ".join((item.id, *item.dtypes, *ops, *sorted(item.profiles)))
    if isinstance(item, Refusal):
        return f"{item.id} {item.text} {item.call.label} refusal"
    words = (item.id, item.call, *item.dtypes, item.origin, item.form, item.layout)
    return " ".join((*words, *sorted(profiles(item))))


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
    if isinstance(item, RandomProgram):
        return run_program(item, setting)
    if isinstance(item, Stored):
        return run_stored(item, setting)
    if isinstance(item, CompositeCall):
        return run_composite(item, setting)
    if isinstance(item, ModelRun):
        return run_model(item, setting)
    if isinstance(item, Lifetime):
        return run_lifetime(item, setting)
    return run_case(item, setting) if isinstance(item, Case) else run_refusal(item, setting)


def spoken(item: Item) -> tuple[str, str, tuple[str, ...]]:
    """The op, the call for a reader and the dtypes of an item."""
    if isinstance(item, RandomProgram):
        return "program", item.id, ()
    if isinstance(item, Stored):
        return "program", item.id, item.dtypes
    if isinstance(item, CompositeCall):
        return item.name, item.id, item.dtypes
    if isinstance(item, ModelRun):
        return "model", item.call, item.dtypes
    if isinstance(item, Lifetime):
        return "lifetime", item.call, item.dtypes
    return (item.op, item.call, item.dtypes) if isinstance(item, Case) else (item.op, item.text, ())
