"""Rows of a report run again, where the same code and the same device are at hand."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ptir.backend import Target, registry
from ptir.errors import PluginError
from ptir.ir.structure import VERSION
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.reports.against import Items
from ptir_testsuite.reports.distribution import version_of
from ptir_testsuite.reports.files import UNSEALED
from ptir_testsuite.reports.provenance import origin_of, strange, suite_version
from ptir_testsuite.reports.report import Report
from ptir_testsuite.reports.verification import Verification
from ptir_testsuite.reports.waivers import applied, waivers_of
from ptir_testsuite.running.items import Item, group_of
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.workers import Order, run_in_processes

OF_ATTEMPTS: Final = ("killed_before",)
"""Facts of how a row came about, which need not be so again."""


def run_again(
    report: Report, items: Items, count: int, timeout: float, found: Verification
) -> None:
    """Run ``count`` rows again, drawn at random, and compare what they come to."""
    if not count:
        found.checked.append("no row again, as was asked")
        return
    header = report.header
    name = f"{header['backend']}:{header['number']}"
    try:
        target = registry.get(name)
    except PluginError as error:
        found.open.append(f"what the rows came to: {error}")
        return
    other = strange(header, origin_of(target, header["imports"]))
    if other:
        found.open.append(
            f"what the rows came to: {'; '.join(other)}: verify it where it was made, or run again"
        )
        return
    found.wrong += _misquoted(header, target)
    if found.wrong:
        return
    terms = Terms(target.backend.correctly_rounded, tuple(header["relaxations"]))
    order = Order(name, tuple(header["imports"]), frozenset(header["profiles"]), terms)
    drawn = random.SystemRandom().sample(report.rows, min(count, len(report.rows)))
    rows = run_in_processes(_with_others(drawn, items), order, 1, timeout)
    waivers = waivers_of(header)
    _compared(drawn, {row.case: applied(row, waivers) for row in rows}, found)
    if not found.wrong:
        found.checked.append(f"{len(drawn)} of {len(report.rows)} rows, drawn at random, run again")


def _misquoted(header: Mapping[str, Any], target: Target) -> list[str]:
    """What the header says of the code and the backend that this same code does not say."""
    backend = target.backend
    said = {
        "version": version_of(backend),
        "spec": ".".join(map(str, VERSION)),
        "suite": suite_version(),
        "correctly_rounded": sorted(backend.correctly_rounded),
    }
    if not header["narrowed"]:
        said["profiles"] = sorted(backend.claimed(target.device))
    return [
        f"the header says {name} {header[name]!r}; the same code says {value!r}"
        for name, value in said.items()
        if header[name] != value
    ]


def _with_others(drawn: Sequence[Row], items: Items) -> list[Item]:
    """The items of some rows, and those that they were run together with."""
    wanted = {group_of(items[row.case]) for row in drawn}
    return [item for item in items.values() if group_of(item) in wanted]


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


def _said(row: Row) -> dict[str, Any]:
    """What a row must say again; how long was waited is no part of a timeout."""
    left_out = (*UNSEALED, *(("message",) if row.outcome is Outcome.TIMEOUT else ()))
    record = {name: value for name, value in row.record().items() if name not in left_out}
    facts = {name: value for name, value in row.facts.items() if name not in OF_ATTEMPTS}
    return {**record, "facts": facts}
