"""``ptir backends``: what is installed, whether it works, and its devices."""

from __future__ import annotations

import click

from ptir import plugins
from ptir.backend.entries import foreign_ptir
from ptir.backend.registry import BackendStatus, pip_line, status_table
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options
from ptir.cli.hidden import unsaid
from ptir.cli.plugin_commands import one_line, report


@click.command()
@common_options
def command(common: CommonOptions) -> None:
    """List the installed backends and their devices; a broken one is a line with its cause."""
    found = status_table()
    plugins.try_strangers()
    loaded = plugins.install()
    broken = loaded.failures()
    report(broken)
    if foreign := foreign_ptir():
        show.note(foreign)
    if common.json:
        show.value([status.record() for status in found])
    elif found:
        columns = ("backend", "distribution", "version", "status", "devices or reason")
        show.table(columns, map(_row, found))
    else:
        show.note(f"no backend is installed: {pip_line('ref')}")
    reasons = [*(s.reason for s in found), *(s.reason for s in loaded.statuses())]
    for what, hiding in unsaid(reasons).items():
        show.note(f"{what}: {hiding}; {hiding.fix}")
    if broken or any(status.status == "broken" for status in found):
        show.note("`ptir doctor` says how to mend what does not work")


def _row(status: BackendStatus) -> tuple[str, ...]:
    devices = ", ".join(f"{d.index} {d.name} ({d.kind})" for d in status.devices)
    last = devices or one_line(status.reason)
    return status.name, status.distribution, status.version, status.status, last
