"""A report against the corpus: which rows there must be, of what they are, and how many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ptir.errors import UsageError
from ptir.ops import OPS
from ptir_testsuite.corpus.derivation import corpus_hash
from ptir_testsuite.corpus.programs import drawn_program
from ptir_testsuite.oracles.accuracy import RELAXATIONS, accuracy_hash
from ptir_testsuite.reports.report import Report
from ptir_testsuite.reports.runner import Programs, Wish, chosen_from
from ptir_testsuite.reports.verification import Verification
from ptir_testsuite.reports.waivers import require_known, waivers_of
from ptir_testsuite.running.items import Item, hashed, profiles, selected, spoken
from ptir_testsuite.running.kinds.programs import RandomProgram, digest_of
from ptir_testsuite.running.modules import import_all
from ptir_testsuite.running.outcomes import Outcome, Row

Items = dict[str, Item]

LOST: Final = frozenset((Outcome.CRASH, Outcome.TIMEOUT, Outcome.WAIVED))
"""Outcomes of rows that a lost process could not say the program of."""


def derived(report: Report, imports: Sequence[str], found: Verification) -> Items | None:
    """The items that the header selects, derived anew; None where this suite has another corpus."""
    header = report.header
    import_all(imports)
    seed, first, count = header["programs"]
    if count > header["total"]:
        text = f"the header has {count} random programs among {header['total']} items"
        found.wrong.append(text)
        return None
    programs = Programs(count, seed, first, header["alone"])
    everything = list(programs.items())
    bounds = accuracy_hash(OPS.values())
    own = {"corpus": corpus_hash(hashed(everything)), "accuracy": bounds}
    for name, value in own.items():
        if header[name] != value:
            found.open.append(
                f"this suite has another {name} ({value}) than the report ({header[name]}): verify"
                f" with ptir-testsuite {header['suite']}"
            )
            return None
    claims = frozenset(header["profiles"]) if header["narrowed"] else None
    wish = Wish(
        header["backend"], claims, header["words"], programs=programs, slice=header["slice"]
    )
    chosen = chosen_from(everything, wish)
    counted = {"total": sum(1 for _ in selected(iter(everything), claims, None))}
    counted["selected"] = len(chosen)
    found.wrong += _header_faults(header, counted, everything)
    items = {item.id: item for item in chosen}
    found.wrong += _row_faults(report, items)
    if not found.wrong:
        found.checked.append("every row against the corpus")
    return items


def _header_faults(
    header: Mapping[str, Any], counted: Mapping[str, int], everything: Iterable[Item]
) -> Iterator[str]:
    for name, value in counted.items():
        if header[name] != value:
            yield f"the header says {name} {header[name]}, and the corpus says {value}"
    for name in header["relaxations"]:
        if name not in RELAXATIONS:
            yield f"the header has a relaxation {name!r}; there are {', '.join(RELAXATIONS)}"
    try:
        require_known(list(waivers_of(header).values()), {item.id for item in everything})
    except UsageError as error:
        yield str(error)


def _row_faults(report: Report, items: Items) -> list[str]:
    """A row that the corpus does not have, or has of something else: the first."""
    ids, left = [row.case for row in report.rows], iter(items)
    in_order = all(one in left for one in ids) if report.interrupted else list(items) == ids
    if not in_order:
        return ["the rows are not those that the corpus has for this selection"]
    held = frozenset(report.header["profiles"])
    faults = (_fault_of(row, items[row.case], held) for row in report.rows)
    first = next(filter(None, faults), None)
    return [first] if first else []


def _fault_of(row: Row, item: Item, held: frozenset[str]) -> str:
    """What a row says of its item that is not so, or nothing."""
    within = profiles(item)
    op, call, dtypes = spoken(item)
    wanted = {
        "op": op,
        "call": call,
        "dtypes": tuple(dtypes),
        "profiles": tuple(sorted(within)),
        "claimed": within <= held,
    }
    for name, value in wanted.items():
        if getattr(row, name) != value:
            return f"{row.case}: the row says {name} {getattr(row, name)!r}; it is {value!r}"
    said = row.facts.get("program")
    unsaid = said is None and row.outcome in LOST
    if isinstance(item, RandomProgram) and not unsaid:
        drawn = drawn_program(item.seed, item.number, held)
        if said != digest_of(drawn):
            return f"{row.case}: the row is of another program than the one of this number"
    return ""
