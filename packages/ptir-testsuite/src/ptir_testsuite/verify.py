"""Whether a report can be believed: its digests, what follows from its rows, and a sample anew.

The digests find a line that was edited, removed or added. Someone who computes them anew is found
by the corpus, which says which rows there must be, and by running some of the rows again.
"""

from __future__ import annotations

import datetime
import importlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptir.backend import registry
from ptir.errors import BackendUnavailable, UsageError
from ptir_testsuite.accuracy import Terms
from ptir_testsuite.corpus import corpus_hash
from ptir_testsuite.files import UNSEALED, Contents, link, read
from ptir_testsuite.items import Item, hashed
from ptir_testsuite.outcomes import Row
from ptir_testsuite.provenance import code_of, digest_of
from ptir_testsuite.report import CONFORMANT, INCOMPLETE, NOT_CONFORMANT, Report
from ptir_testsuite.runner import Programs, Wish, chosen_from
from ptir_testsuite.waivers import Waiver, applied, misused
from ptir_testsuite.workers import Order, run_in_processes


@dataclass
class Verification:
    """What was looked at, what speaks against the report, and what could not be checked."""

    checked: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    open: list[str] = field(default_factory=list[str])

    @property
    def exit_code(self) -> int:
        """0 believed, 1 rejected, 3 where a part of it could not be checked."""
        if self.wrong:
            return NOT_CONFORMANT
        return INCOMPLETE if self.open else CONFORMANT


def verify(path: Path, sample: int = 16, timeout: float = 60.0) -> Verification:
    """Check the report at ``path``, and run ``sample`` of its rows again."""
    contents = read(path)
    report, found = _in_itself(contents)
    if report is None or found.wrong:
        return found
    _unexpired(report, datetime.date.today(), found)
    items = _corpus(report, found)
    if items is not None and sample and not found.wrong:
        _again(report, items, sample, timeout, found)
    return found


def rejections(contents: Contents) -> list[str]:
    """What speaks against a report in itself, without the corpus and without running anything."""
    return _in_itself(contents)[1].wrong


def _in_itself(contents: Contents) -> tuple[Report | None, Verification]:
    found = Verification()
    if contents.footer is None or contents.torn:
        found.wrong.append("there is no footer: the run is unfinished, or its end was cut off")
        return None, found
    _digests(contents, found)
    try:
        report = Report(contents.plain_header, contents.parsed)
    except UsageError as error:
        found.wrong.append(str(error))
        return None, found
    report.interrupted = bool(contents.footer["interrupted"])
    _follows(report, contents.footer, found)
    return report, found


def _digests(contents: Contents, found: Verification) -> None:
    digest = ""
    lines = (contents.header, *contents.rows, contents.footer or {})
    for number, record in enumerate(lines, 1):
        digest = link(digest, record)
        if record.get("digest") != digest:
            where = record.get("id", record["kind"])
            found.wrong.append(
                f"line {number} ({where}): its digest is not that of the lines up to it: a line was"
                " edited, removed or added"
            )
            return
    found.checked.append(f"the digests of {len(lines)} lines")


def _follows(report: Report, footer: dict[str, Any], found: Verification) -> None:
    """Counts and verdict are what the rows come to, and the rows are those that were selected."""
    wanted = report.footer()
    for name, value in wanted.items():
        said = footer.get(name)
        if said != value:
            if isinstance(said, dict):  # the outcomes: those that differ
                both = said.keys() | value.keys()
                odd = sorted(one for one in both if said.get(one) != value.get(one))
                said, value = ({one: d.get(one, 0) for one in odd} for d in (said, value))
            text = f"the footer says {name} {said!r}, and the rows say {value!r}"
            found.wrong.append(text)
    ids = [row.case for row in report.rows]
    found.wrong += misused(report.rows, report.header.get("waivers", ()))
    if len(set(ids)) != len(ids):
        found.wrong.append("an id has two rows")
    if not report.interrupted and digest_of(ids) != report.header["items"]:
        found.wrong.append("the rows are not those that the header selects: one is gone or moved")
    if not found.wrong:
        found.checked.append(f"{len(ids)} rows, their counts and the verdict {report.verdict!r}")


def _corpus(report: Report, found: Verification) -> dict[str, Item] | None:
    """The items that the header selects, derived anew; None where this suite has another corpus."""
    header = report.header
    for name in header["imports"]:
        importlib.import_module(name)
    seed, first, count = header["programs"]
    programs = Programs(count, seed, first, header["alone"])
    everything = list(programs.items())
    own = corpus_hash(hashed(everything))
    if own != header["corpus"]:
        found.open.append(
            f"this suite has another corpus ({own}) than the report ({header['corpus']}):"
            f" verify with ptir-testsuite {header['suite']}"
        )
        return None
    claims = frozenset(header["profiles"]) if header["narrowed"] else None
    wish = Wish(header["backend"], claims, header["words"], programs=programs)
    items = {item.id: item for item in chosen_from(everything, wish)}
    if not report.interrupted and list(items) != [row.case for row in report.rows]:
        found.wrong.append("the rows are not those that the corpus has for this selection")
    found.checked.append("every row against the corpus")
    return items


def _again(
    report: Report, items: dict[str, Item], count: int, timeout: float, found: Verification
) -> None:
    """Run some rows again, where the same code and the same device are at hand."""
    header = report.header
    name = f"{header['backend']}:{header['number']}"
    try:
        target = registry.get(name)
    except BackendUnavailable as error:
        found.checked.append(f"no row again: {error}")
        return
    now = {"code": code_of(target.backend), "device": target.device.name}
    now["detail"] = target.device.detail
    other = [what for what, value in now.items() if header[what] != value]
    if other:
        found.checked.append(f"no row again: another {' and '.join(other)} here than in the report")
        return
    terms = Terms(frozenset(header["correctly_rounded"]), tuple(header["relaxations"]))
    order = Order(name, tuple(header["imports"]), frozenset(header["profiles"]), terms)
    chosen = random.SystemRandom().sample(report.rows, min(count, len(report.rows)))
    rows = run_in_processes([items[row.case] for row in chosen], order, 1, timeout)
    waivers = _waivers(report)
    _compared(chosen, {row.case: applied(row, waivers) for row in rows}, found)


def _waivers(report: Report) -> dict[str, Waiver]:
    listed = report.header.get("waivers", ())
    return {record["id"]: Waiver(**record) for record in listed}


def _unexpired(report: Report, today: datetime.date, found: Verification) -> None:
    """A verdict does not outlive the waivers that it rests on."""
    waivers = _waivers(report)
    over = [w for w in waivers.values() if w.expired(today)]
    found.wrong += [f"the waiver of {w.id} expired on {w.expires}: run again" for w in over]
    unknown = sorted(w for w in waivers if w not in {row.case for row in report.rows})
    if waivers and not over:
        text = f"{len(waivers)} waivers, none of which has expired"
        found.checked.append(text + (f"; {len(unknown)} are of cases not run" if unknown else ""))


def _compared(chosen: Sequence[Row], again: dict[str, Row], found: Verification) -> None:
    for row in chosen:
        before, now = _said(row), _said(again[row.case])
        differing = [name for name in before if before[name] != now[name]]
        if differing:
            name = differing[0]
            found.wrong.append(
                f"{row.case}: the report says {name} {before[name]!r}; run again it is"
                f" {now[name]!r}"
            )
    if not found.wrong:
        found.checked.append(f"{len(chosen)} rows, drawn at random and run again")


def _said(row: Row) -> dict[str, Any]:
    record = {name: value for name, value in row.record().items() if name not in UNSEALED}
    facts = {name: value for name, value in row.facts.items() if name != "killed_before"}
    return {**record, "facts": facts}
