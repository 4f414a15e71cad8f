"""Everything that can be run as one row of a report: cases and refusals, in one fixed order."""

from __future__ import annotations

from collections.abc import Iterator

from ptir.ops import OPS
from ptir_testsuite.case import Case
from ptir_testsuite.corpus import corpus
from ptir_testsuite.execute import Setting, run_case
from ptir_testsuite.outcomes import Row
from ptir_testsuite.profiles import names_of, profiles_of
from ptir_testsuite.refusals import Refusal, refusals, run_refusal
from ptir_testsuite.selection import Matches

Item = Case | Refusal


def items() -> Iterator[Item]:
    """The whole corpus, then every refusal."""
    yield from corpus()
    yield from refusals()


def profiles(item: Item) -> frozenset[str]:
    """The profiles that an item belongs to."""
    dtypes = item.dtypes if isinstance(item, Case) else ()
    return profiles_of(OPS[item.op], names_of(dtypes))


def described(item: Item) -> str:
    """The text that ``-k`` searches: id, call, dtypes, origin and profiles."""
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
    if isinstance(item, Case):
        return run_case(item, setting)
    return run_refusal(item, setting)
