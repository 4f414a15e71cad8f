"""Commands that plugins add to ``ptir``; a broken plugin is one line on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from ptir.backend.entries import listed

if TYPE_CHECKING:
    from ptir.plugins import PluginStatus


def plugin_commands(taken: frozenset[str]) -> dict[str, click.Command]:
    """The plugins' commands by name, without those whose names are ``taken`` or claimed twice.

    Plugins are loaded only when the entry-point group ``ptir.plugins`` has entries.
    """
    if not listed("ptir.plugins"):
        return {}
    from ptir.plugins import Row, load

    plugins = load()
    claims: dict[str, list[Row]] = {}
    for row in plugins.rows("ptir_commands"):
        claims.setdefault(str(row.value.name), []).append(row)
    for name in [n for n, rows in claims.items() if len(rows) > 1 or n in taken]:
        owners = [row.plugin for row in claims.pop(name)]
        for owner in owners:
            others = ["ptir itself"] * (name in taken) + [o for o in owners if o != owner]
            also = " and ".join(others) or "itself again"
            plugins.blame(owner, f"its command {name!r} is also claimed by {also}")
    report(plugins.untold())
    return {name: rows[0].value for name, rows in claims.items()}


def report(failures: Iterable[PluginStatus]) -> None:
    """One line on stderr for each plugin that is not ok."""
    for status in failures:
        click.echo(str(status), err=True)


def one_line(text: str) -> str:
    """``text`` with its lines joined."""
    return " ".join(line.strip() for line in text.splitlines())
