"""``ptir patterns``: the functionals that are found in programs which are written as ops."""

from __future__ import annotations

from typing import Any

import click

from ptir.backend.contract import OpQuery, Target
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session, showing_only


@showing_only("json")
@click.command()
@click.option("--target", metavar="NAME[:DEVICE]", help="Say what this backend takes whole.")
@common_options
def command(common: CommonOptions, target: str | None) -> None:
    """List the functionals that ops are raised to, and the ways to write each that are known."""
    from ptir.backend import registry

    with session(common):
        chosen = registry.get(target) if target else None
        records = [record(name, chosen) for name in _names()]
    if common.json:
        show.value(records)
        return
    columns = ["functional", "operands", "numbers found", "spellings"]
    columns += [f"on {chosen}"] if chosen else []
    rows = [
        (
            one["functional"],
            one["operands"],
            ", ".join(one["attributes"]),
            ", ".join(s["name"] for s in one["spellings"]),
            *([_taken(one)] if chosen else []),
        )
        for one in records
    ]
    show.table(columns, rows)


def _names() -> list[str]:
    from ptir.rewrite.patterns import Patterns

    return list(Patterns)


def _taken(one: dict[str, Any]) -> str:
    return "whole" if one["refusal"] is None else f"by its lowering: {one['refusal']}"


def record(name: str, target: Target | None) -> dict[str, Any]:
    """A pattern as ``--json`` prints it; with a target, why that does not take it whole or null."""
    from ptir.ops.implementations import PORTABLE, SPELLINGS
    from ptir.rewrite.patterns import Patterns

    row = Patterns[name].row
    documented = {n: (f.__doc__ or "").strip() for n, f in SPELLINGS.get(name, {}).items()}
    spellings = {PORTABLE: "The functional's own lowering, in any order of sums and products."}
    told: dict[str, Any] = {
        "functional": name,
        "operands": row.signature.replace("*", ""),
        "attributes": [*row.unknown, *(n for n in row.choices if n not in row.unknown)],
        "spellings": [{"name": n, "doc": d} for n, d in (spellings | documented).items()],
    }
    if target is not None:
        query = OpQuery("composite", *Patterns[name].sample())
        told["refusal"] = target.backend.refusal(query, target.device)
    return told
