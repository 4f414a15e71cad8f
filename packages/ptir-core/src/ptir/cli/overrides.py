"""``ptir overrides``: functionals, their implementations, and what ``--override`` asks for."""

from __future__ import annotations

from typing import Any

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.ops.implementations import FUNCTIONALS, Functional, active_overrides


@click.command()
@common_options
def command(common: CommonOptions) -> None:
    """List functionals and the implementations that ``--override F=force=NAME`` can choose."""
    with session(common):
        policies = {name: str(policy) for name, policy in active_overrides()}
        records = [record(f, policies.get(f.name, "default")) for f in FUNCTIONALS.values()]
    if common.json:
        show.value(records)
    else:
        rows = [
            (found["functional"], found["policy"], one["name"], one["doc"])
            for found in records
            for one in found["implementations"]
        ]
        show.table(("functional", "policy", "implementation", "what it does"), rows)


def record(found: Functional, policy: str) -> dict[str, Any]:
    """A functional as ``--json`` prints it, with the policy in force."""
    implementations = [{"name": i.name, "doc": i.doc} for i in found.implementations.values()]
    name = found.name
    return {
        "functional": name,
        "doc": found.doc,
        "policy": policy,
        "implementations": implementations,
    }
