"""Whether a report can be believed: in itself, against the corpus, and by running rows again.

The digests find a line that was edited, removed or added. Someone who computes them anew is found
by the corpus, which says what rows there must be and what they are of, and by running rows again:
what a row came to is proved by nothing else.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Final

from ptir.errors import UsageError
from ptir_testsuite.reports.against import derived
from ptir_testsuite.reports.files import Contents, broken, read
from ptir_testsuite.reports.provenance import digest_of
from ptir_testsuite.reports.report import Report
from ptir_testsuite.reports.rerun import run_again
from ptir_testsuite.reports.verification import Verification
from ptir_testsuite.reports.waivers import misused, waivers_of

SAMPLE: Final = 16
"""Rows that are run again unless more are asked for."""


def verify(
    path: Path, sample: int = SAMPLE, timeout: float = 60.0, imports: tuple[str, ...] = ()
) -> Verification:
    """Check the report at ``path``, and run ``sample`` of its rows again.

    ``imports`` are the modules that define its ops: none is imported because a file says so.
    """
    contents = read(path)
    report, found = _in_itself(contents)
    if report is None or found.wrong:
        return found
    lacking = [name for name in report.header["imports"] if name not in imports]
    if lacking:
        text = " ".join(f"--import {name}" for name in lacking)
        found.open.append(f"the corpus: it rests on modules of yours; verify with {text}")
        return found
    items = derived(report, imports, found)
    if items is not None and not found.wrong:
        run_again(report, items, sample, timeout, found)
    return found


def rejections(contents: Contents) -> list[str]:
    """What speaks against a report in itself, without the corpus and without running anything."""
    return _in_itself(contents)[1].wrong


def _in_itself(contents: Contents) -> tuple[Report | None, Verification]:
    found = Verification()
    if contents.footer is None or contents.torn:
        found.wrong.append("there is no footer: the run is unfinished, or its end was cut off")
        return None, found
    if "digest" not in contents.header:
        found.wrong.append("line 1 (header): it has no digest")
    elif fault := broken(contents):
        found.wrong.append(fault)
    else:
        found.checked.append(f"the digests of {len(contents.rows) + 2} lines")
    try:
        report = Report(contents.plain_header, contents.parsed)
    except UsageError as error:
        found.wrong.append(str(error))
        return None, found
    report.interrupted = contents.footer["interrupted"]
    _follows(report, contents.footer, found)
    if not found.wrong:
        _unexpired(report, datetime.date.today(), found)
    return report, found


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
    found.wrong += misused(report.rows, report.header["waivers"])
    if len(set(ids)) != len(ids):
        found.wrong.append("an id has two rows")
    if not report.interrupted and digest_of(ids) != report.header["items"]:
        found.wrong.append("the rows are not those that the header selects: one is gone or moved")
    if not found.wrong:
        found.checked.append(f"{len(ids)} rows, their counts and the verdict {report.verdict!r}")


def _unexpired(report: Report, today: datetime.date, found: Verification) -> None:
    """A verdict does not outlive the waivers that it rests on."""
    waivers = waivers_of(report.header)
    over = [w for w in waivers.values() if w.expired(today)]
    found.wrong += [f"the waiver of {w.id} expired on {w.expires}: run again" for w in over]
    unknown = sorted(w for w in waivers if w not in {row.case for row in report.rows})
    if waivers and not over:
        text = f"{len(waivers)} waivers, none of which has expired"
        found.checked.append(text + (f"; {len(unknown)} are of cases not run" if unknown else ""))
