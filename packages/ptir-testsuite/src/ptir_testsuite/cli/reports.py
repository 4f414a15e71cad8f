"""``verify``, ``failures`` and ``replay``: is a report to be believed, what failed, a row again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ptir_testsuite.cli.common import COUNT, SECONDS, built_anew, console, on_backend, terminable
from ptir_testsuite.cli.runs import wish_of
from ptir_testsuite.reports.failures import everything, groups
from ptir_testsuite.reports.files import read
from ptir_testsuite.reports.report import CONFORMANT, INCOMPLETE, NOT_CONFORMANT
from ptir_testsuite.reports.runner import Programs, opened
from ptir_testsuite.reports.verify import SAMPLE, verify
from ptir_testsuite.running.finding import item_of
from ptir_testsuite.running.replay import SHOWN, replay
from ptir_testsuite.running.workers import Order

existing = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("verify")
@click.argument("report", type=existing)
@click.option(
    "--again",
    type=COUNT,
    default=SAMPLE,
    help="So many rows, drawn at random, are run again; 0: none.",
)
@click.option("--timeout", type=SECONDS, default=60.0, help="Seconds that one of them may take.")
@click.option("--import", "imports", multiple=True, help="A module that defines its ops.")
def verify_command(report: Path, again: int, timeout: float, imports: tuple[str, ...]) -> int:
    """Say whether a report can be believed: 0 yes, 1 no, 3 not all of it could be checked."""
    with built_anew(), terminable():
        found = verify(report, again, timeout, imports)
    for text in found.wrong:
        click.echo(f"{report}: {text}")
    for text in found.open:
        click.echo(f"{report}: not checked: {text}")
    for text in found.checked:
        click.echo(f"checked: {text}")
    words = {CONFORMANT: "believed", NOT_CONFORMANT: "rejected", INCOMPLETE: "not all checked"}
    click.echo(f"{report}: {words[found.exit_code]}")
    return found.exit_code


@click.command("failures")
@click.argument("report", type=existing)
@click.option("--full", is_flag=True, help="With operands, elements and bounds of each.")
def failures_command(report: Path, full: bool) -> int:
    """List every failure of a report, finished or not, by what they have in common; 1 where any."""
    rows = [row for row in read(report).parsed if row.failed]
    for text in everything(groups(rows), full):
        console().print(text, soft_wrap=True)
    console().print(f"{report}: {len(rows)} failures" if rows else f"{report}: no failure")
    return NOT_CONFORMANT if rows else CONFORMANT


@click.command("replay")
@click.argument("id")
@on_backend
@click.option("--timeout", type=SECONDS, default=60.0, help="Seconds that it may take.")
@click.option("--most", type=COUNT, default=SHOWN, help="Elements shown of each tensor.")
def replay_command(id: str, timeout: float, most: int, **options: Any) -> int:
    """Run the row called ID again and show everything about it; 1 where it fails, else 0."""
    wish = wish_of(options, Programs())
    with built_anew(), terminable():
        setting = opened(wish)
        order = Order(wish.backend, wish.imports, setting.claims, setting.terms)
        row, lines = replay(item_of(id), setting, order, timeout, most)
    for line in lines:
        console().print(line, soft_wrap=True)
    return NOT_CONFORMANT if row.failed else CONFORMANT
