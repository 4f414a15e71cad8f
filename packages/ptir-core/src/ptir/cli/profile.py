"""What ``--profile`` prints: where the time of a command went, as tables on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ptir.cli import show
from ptir.units import duration, size

if TYPE_CHECKING:
    from ptir.trace.profile import ProgramProfile, Roofs, Work
    from ptir.trace.stats import ProfileRow, StatsSink

MOST: Final = 30
"""Rows of a table; the others are one."""
COLUMNS: Final = ("", "count", "time", "share", "bytes", "GB/s", "FLOPs", "GFLOP/s", "of roof")
TITLES: Final = {
    "compile": "compilation, passes and kernels included",
    "build": "kernels built",
    "restore": "kernels restored",
    "load": "parameters loaded",
}


def print_profile(programs: Sequence[ProgramProfile], stats: StatsSink) -> None:
    """Programs, their parts by layer, functional and kernel, and what went before them.

    Roofs are those of the device on which most of the time was spent.
    """
    from ptir.cli.roofs import roofs_of
    from ptir.trace.profile import VIEWS, Roofs, works_by

    roofs = roofs_of(programs[0].plan.target) if programs else Roofs()
    for view in VIEWS:
        works = works_by(view, programs)
        if works:
            columns = (f"by {view}", *COLUMNS[1:])
            show.table(columns, _rows(works, roofs), err=True)
            show.rich("", err=True)
    show.table(("program", "runs", "time", "parts"), _programs(programs), err=True)
    show.rich("", err=True)
    show.table(("before and between", "count", "time", "bytes"), _others(stats), err=True)
    show.rich(_roofs(roofs), err=True)


def _rows(works: Sequence[Work], roofs: Roofs) -> Iterator[tuple[str, ...]]:
    from ptir.trace.profile import Work, total

    whole = total(works)
    left = works[MOST:]
    shown = [*works[:MOST]]
    if left:
        rest = Work(f"{len(left)} more")
        for work in left:
            rest.count += work.count
            rest.seconds += work.seconds
            rest.nbytes += work.nbytes
            rest.flops += work.flops
        shown.append(rest)
    for work in shown:
        share = roofs.share(work.seconds, work.nbytes, work.flops)
        rates = (n / work.seconds / 1e9 if work.seconds else 0.0 for n in (work.nbytes, work.flops))
        bandwidth, speed = (f"{rate:.1f}" for rate in rates)
        yield (
            f"{work.name} ({work.detail})" if work.detail else work.name,
            str(work.count),
            duration(work.seconds),
            f"{work.seconds / whole:.0%}" if whole else "",
            size(work.nbytes),
            bandwidth,
            f"{work.flops:.3g}",
            speed,
            "" if share is None else f"{share:.0%}",
        )


def _programs(programs: Sequence[ProgramProfile]) -> Iterator[tuple[str, ...]]:
    for one in programs:
        parts = duration(sum(one.parts)) if one.parts else "not timed"
        name = one.plan.name or one.plan.captured.digest[:8]
        yield name, str(one.runs), duration(one.seconds), parts


def _others(stats: StatsSink) -> Iterator[tuple[str, ...]]:
    """Passes one by one, and compilation, kernels and parameters in all."""
    rows = stats.profile()
    for row in rows:
        if row.kind == "pass":
            yield _cells(f"pass {row.name}", [row])
    for kind, title in TITLES.items():
        found = [row for row in rows if row.kind == kind]
        if found:
            yield _cells(title, found)
    for cache, (hits, misses) in stats.caches().items():
        yield f"cache {cache}", f"{hits} hits, {misses} misses", "", ""


def _cells(title: str, rows: Sequence[ProfileRow]) -> tuple[str, ...]:
    totals = [row.total for row in rows]
    seconds, nbytes = sum(t.seconds for t in totals), sum(t.nbytes for t in totals)
    return title, str(sum(t.count for t in totals)), duration(seconds), size(nbytes)


def _roofs(roofs: Roofs) -> str:
    given = (
        ("memory", roofs.bytes_per_second, "GB/s"),
        ("products of f32 matrices", roofs.flops_per_second, "GFLOP/s"),
    )
    said = (f"{n} {v / 1e9:.1f} {unit}" if v else f"{n} unknown" for n, v, unit in given)
    return f"\nroofs, measured: {', '.join(said)}"
