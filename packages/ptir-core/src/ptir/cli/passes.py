"""A program after each pass, with what fired where: ``ptir dump --passes``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptir.backend.contract import Target
    from ptir.events import Event, PassRun
    from ptir.ir.program import Program
    from ptir.passes.context import PassContext


def context_for(target: Target) -> PassContext:
    """What passes look at for a program that is to run there under the policies in force."""
    from ptir.capture.plan import checks_indices
    from ptir.ops.overriding import active_overrides
    from ptir.passes.context import PassContext

    overrides = active_overrides()
    return PassContext(target.backend, target.device, overrides, check_indices=checks_indices())


def runs_of(program: Program, target: Target) -> list[PassRun]:
    """What every pass made of ``program``, in order."""
    from ptir import events
    from ptir.passes.pipeline import optimize

    found: list[PassRun] = []

    def hear(event: Event) -> None:
        if isinstance(event, events.PassRun):
            found.append(event)

    remove = events.subscribe(hear)
    try:
        optimize(program, context_for(target))
    finally:
        remove()
    return found


def lines(runs: list[PassRun], *, locations: bool) -> Iterator[str]:
    """Each pass as text: its name, which rules fired where, and the program if it changed."""
    from ptir.ir.printer import print_program

    for number, run in enumerate(runs, 1):
        changed = run.after != run.before
        what = f"{len(run.after.main.instructions)} instructions" if changed else "nothing changed"
        yield f"# {number:02} {run.name}: {what}, {run.seconds * 1e3:.1f} ms"
        for firing, count in _counted(run):
            yield f"#    {firing}{f' ({count} times)' if count > 1 else ''}"
        if changed:
            yield print_program(run.after, locations=locations)
        yield ""


def _counted(run: PassRun) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for firing in run.firings:
        where = str(firing.location)
        text = f"{firing.rule} on {firing.op}{f' at {where}' if where else ''}"
        counts[text] = counts.get(text, 0) + 1
    return list(counts.items())


def record(run: PassRun) -> dict[str, Any]:
    """A pass as ``--json`` prints it; the program is null where nothing changed."""
    from ptir.ir.jsonform import location_json, to_json

    return {
        "pass": run.name,
        "seconds": run.seconds,
        "rewrites": run.rewrites,
        "firings": [
            {"rule": f.rule, "op": f.op, "location": location_json(f.location)} for f in run.firings
        ],
        "program": to_json(run.after) if run.after != run.before else None,
    }
