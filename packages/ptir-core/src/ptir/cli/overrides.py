"""``ptir overrides``: implementations, which are in force and who asked, and what was timed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.ops.implementations import FUNCTIONALS, Functional
from ptir.units import duration

if TYPE_CHECKING:
    from ptir.ops.policies import Override, Overrides
    from ptir.passes.remembered import Seconds, TuningRecord

TIMED: Final = ("timed", "call", "on", "chosen", "times the default", "median (half of the rounds)")
"""The columns of timed choices."""


@click.command()
@click.argument("model", required=False)
@click.option(
    "--reset",
    metavar="F|all",
    help="Forget what was timed for a functional, or everything, and for which models.",
)
@common_options
def command(common: CommonOptions, model: str | None, reset: str | None) -> None:
    """List functionals, their implementations, the overrides in force, and what was timed.

    With MODEL those that come with it are in the list: of its family, of its config.json, and of
    `ptir tune`. Of two that fit a call the stronger decides; from the weakest, they are asked for
    by the family of a model, by `ptir tune`, by plugins, by a checkpoint, when a model is loaded
    (--fast), by PTIR_OVERRIDE, by --override, and by `with ptir.overrides(...)` in a program.
    """
    from ptir.passes.remembered import remembered
    from ptir.passes.tuned import forget_timed, remembered_models

    with session(common):
        forgotten = None if reset is None else forget_timed(reset)
        asked = _in_force(model)
        records = [record(found, asked) for found in FUNCTIONALS.values()]
        timed = remembered()
        tuned = remembered_models()
    if common.json:
        show.value(
            {
                "functionals": records,
                "in_force": [_override(one) for one in asked],
                "timed": [asdict(one) for one in timed],
                "tuned": tuned,
                "forgotten": forgotten,
            }
        )
        return
    if forgotten is not None:
        show.text(f"forgot {forgotten} timed choices")
        return
    rows = [
        (found["functional"], found["policy"], one["name"], one["accuracy"], one["doc"])
        for found in records
        for one in found["implementations"]
    ]
    show.table(("functional", "policy", "implementation", "accuracy", "what it does"), rows)
    if asked:
        show.text("")
        lines = [(one.target, str(one.policy), one.origin.text) for one in reversed(asked)]
        show.table(("in force for", "policy", "asked for by"), lines)
    if timed:
        show.text("")
        show.table(TIMED, [timed_row(one) for one in timed])


def _in_force(model: str | None) -> Overrides:
    """The overrides of the session, and those of a model below them."""
    from ptir.ops.overriding import active_overrides, in_force

    if model is None:
        return active_overrides()
    from ptir.runtime.load import architecture_of, prepared
    from ptir.runtime.model_overrides import configured_overrides, model_overrides
    from ptir.runtime.specs import resolve

    checkpoint = prepared(resolve(model))
    config = checkpoint.config
    asked = configured_overrides(config)
    family = architecture_of(config)
    with in_force(model_overrides(str(checkpoint.path), family, asked, {}, {})):
        return active_overrides()


def record(found: Functional, asked: Overrides) -> dict[str, Any]:
    """A functional as ``--json`` prints it, with the policy that holds for all its calls."""
    implementations = [
        {"name": one.name, "accuracy": one.accuracy, "doc": one.doc}
        for one in found.implementations.values()
    ]
    plain = [one for one in asked if one.functional == found.name and not one.conditions]
    policy = str(plain[-1].policy) if plain else "default"
    return {
        "functional": found.name,
        "doc": found.doc,
        "policy": policy,
        "sizes": [*found.shapes.names],
        "implementations": implementations,
    }


def _override(one: Override) -> dict[str, Any]:
    return {"target": one.target, "policy": str(one.policy), "origin": one.origin.text}


def timed_row(one: TuningRecord) -> tuple[str, ...]:
    """A record as a row: the call, the choice, and the times of all."""
    times = ", ".join(f"{name} {_range(each)}" for name, each in one.seconds.items())
    fastest = min(one.seconds, key=lambda name: one.seconds[name].median)
    within = "" if fastest == one.default else f"{fastest} within the spread"
    gain = f"{one.speedup:.2f}" if one.decided else within
    return one.functional, one.call, f"{one.backend}, {one.device}", one.implementation, gain, times


def _range(found: Seconds) -> str:
    return f"{duration(found.median)} ({duration(found.low)} to {duration(found.high)})"
