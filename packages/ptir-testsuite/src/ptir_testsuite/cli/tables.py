"""``matrix``, ``badge``, ``support`` and ``coverage``: tables, and what they are made of."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from ptir.ops import OPS
from ptir_testsuite.cli.common import console, on_backend, require_place
from ptir_testsuite.cli.reports import existing
from ptir_testsuite.cli.runs import wish_of
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.coverage import EXEMPT, needs
from ptir_testsuite.reports import badge, matrix
from ptir_testsuite.reports.report import CONFORMANT, NOT_CONFORMANT
from ptir_testsuite.reports.runner import Programs, opened
from ptir_testsuite.reports.support import asked, folded, profile_lines
from ptir_testsuite.running.items import composites, items
from ptir_testsuite.running.modules import import_all

output = click.option(
    "-o", "--output", "path", type=click.Path(path_type=Path, dir_okay=False), help="Into a file."
)


def _given(text: str, path: Path | None) -> None:
    if path is None:
        click.echo(text)
    else:
        require_place("--output", path)
        path.write_text(text + "\n", encoding="utf-8")


@click.command("matrix")
@click.argument("reports", type=existing, nargs=-1, required=True)
@click.option("--markdown", is_flag=True, help="As Markdown.")
@click.option("--html", is_flag=True, help="As a page that can be sorted and searched.")
@click.option("--errors", is_flag=True, help="Worst errors that passed, instead of marks.")
@output
def matrix_command(
    reports: tuple[Path, ...], markdown: bool, html: bool, errors: bool, path: Path | None
) -> int:
    """Put reports side by side: op x dtype x backend."""
    if markdown and html:
        raise click.UsageError("--markdown and --html are two forms of one table; give one")
    found = matrix.columns(reports)
    grids = matrix.summary(found), matrix.matrix(found, errors)
    order = f"in each cell: {', '.join(column.name for column in found)}; "
    legend = order + (matrix.ERRORS if errors else matrix.LEGEND)
    if html:
        _given(matrix.page(grids, legend).rstrip(), path)
        return CONFORMANT
    if markdown or path is not None:
        first, second = ("\n".join(matrix.markdown(grid)) for grid in grids)
        _given(f"{first}\n\n{legend}\n\n{second}", path)
        return CONFORMANT
    for grid in grids:
        console().print(matrix.table(grid))
    console().print(legend)
    return CONFORMANT


@click.command("badge")
@click.argument("report", type=existing)
@click.option("--format", "kind", type=click.Choice(("svg", "json")), default="svg")
@output
def badge_command(report: Path, kind: str, path: Path | None) -> int:
    """Make a badge of a report: a picture, or JSON for shields.io."""
    found = matrix.finished(report)
    _given(badge.svg(found).rstrip() if kind == "svg" else badge.shields(found), path)
    return CONFORMANT


@click.command("support")
@on_backend
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def support_command(as_json: bool, **options: Any) -> int:
    """Show what a backend claims; 1 where it refuses something within a claimed profile."""
    setting = opened(wish_of(options, Programs()))
    cases = [item for item in items(0) if isinstance(item, Case)]
    found = asked(setting, cases, composites())
    target = setting.target
    if as_json:
        cells = [{"op": o, "dtype": d, **vars(c)} for (o, d), c in found.cells.items()]
        record = {
            "backend": target.backend.name,
            "device": target.device.name,
            "profiles": sorted(setting.claims),
            "correctly_rounded": sorted(target.backend.correctly_rounded),
            "composites": found.whole,
            "cells": cells,
        }
        click.echo(json.dumps(record, indent=1))
        return NOT_CONFORMANT if found.broken else CONFORMANT
    page = console()
    page.print(f"{target}: what it says that it takes; `run` finds out whether it is true")
    for line in profile_lines(setting.claims):
        page.print(line)
    rounded = ", ".join(sorted(target.backend.correctly_rounded)) or "none"
    page.print(f"correctly rounded, of the ops that need not be: {rounded}")
    page.print(f"composites taken whole: {', '.join(found.whole) or 'none'}")
    for grid in folded(found.grid(), page.width):
        page.print(matrix.table(grid))
    page.print(
        "✓ taken, ~ not taken and run by another way, N/M of M kinds of calls N are taken,"
        " ✗ refused within a claimed profile"
    )
    for text in found.broken:
        page.print(f"claimed and refused: {text}", soft_wrap=True)
    return NOT_CONFORMANT if found.broken else CONFORMANT


@click.command("coverage")
@click.option("--import", "imports", multiple=True, help="A module that defines ops.")
def coverage_command(imports: tuple[str, ...]) -> int:
    """Say what the corpus has no case for; 1 where there is anything."""
    import_all(imports)
    found = list(needs())
    holes = [need for need in found if not need.met]
    for need in holes:
        click.echo(f"{need.op}: no case for {need.text}")
    for profile, reason in EXEMPT.items():
        names = [op.name for op in OPS.values() if op.profile == profile]
        click.echo(f"nothing is owed to {', '.join(names)} ({profile}): {reason}")
    ops = len(Counter(need.op for need in found))
    click.echo(f"{len(found) - len(holes)}/{len(found)} needs of {ops} ops are met")
    return NOT_CONFORMANT if holes else CONFORMANT
