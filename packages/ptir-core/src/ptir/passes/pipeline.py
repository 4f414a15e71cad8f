"""The pipeline: every pass in the order in which it runs, and how it is run."""

from __future__ import annotations

import hashlib
import time
from typing import Final

from ptir import events
from ptir.errors import VerifyError
from ptir.ir.location import UNKNOWN, located
from ptir.ir.program import Program
from ptir.ops.verify import verify
from ptir.passes.canonicalize import canonicalize
from ptir.passes.context import Pass, PassContext
from ptir.passes.cse import cse
from ptir.passes.dce import dce
from ptir.passes.finish import FINISHING
from ptir.passes.hoist_takes import hoist_takes
from ptir.passes.raise_composites import AS_WRITTEN, raise_composites
from ptir.passes.select import select
from ptir.passes.stage import PLUGGED, Stage, check_ports, plug_in
from ptir.rewrite.firings import Firings
from ptir.rewrite.plugged import rules_in_force
from ptir.rewrite.worth import ADDED
from ptir.switches import FAST_MATH, switched_on

__all__ = ["PIPELINE", "PLUGGED", "Stage", "optimize", "pipeline_key", "plug_in"]

PIPELINE: Final[tuple[Stage, ...]] = (
    Stage("canonicalize", canonicalize),
    Stage("cse", cse),
    Stage("dce", dce),
    Stage("backend pre", point="pre"),
    Stage("raise", raise_composites),
    Stage("hoist takes", hoist_takes),
    Stage("backend raised", point="raised"),
    Stage("select", select),
    *FINISHING,
)


def pipeline_key(pipeline: tuple[Stage, ...] = PIPELINE) -> str:
    """A digest of the stages and rules: part of the key of every plan that they made."""
    parts = [*(stage.name for stage in pipeline), *PLUGGED, *ADDED]
    parts += [name for name in (AS_WRITTEN, FAST_MATH) if switched_on(name)]
    parts += [f"{rule.name}: {rule.text}" for rule in rules_in_force(fast_math=True)]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def optimize(
    program: Program, context: PassContext, pipeline: tuple[Stage, ...] = PIPELINE
) -> Program:
    """``program`` after every stage, ready for the context's backend to compile.

    With ``PTIR_VERIFY=1`` it is verified in between; ``VerifyError`` names the pass that broke it.
    Raises ``UnsupportedError`` for what the backend cannot run.
    """
    checked = switched_on("PTIR_VERIFY")
    for stage in pipeline:
        for name, run in stage.passes(context):
            before, program = program, _run(name, run, program, context)
            if checked:
                _verify(name, before, program)
    return program


def _run(name: str, run: Pass, program: Program, context: PassContext) -> Program:
    counted = context.rewrites
    heard = events.listening()
    found = context.rewrites = Firings() if heard else {}
    start = time.perf_counter()
    try:
        with located(UNKNOWN):  # what a pass makes for no instruction comes from none
            after = run(program, context)
    finally:
        context.rewrites = counted
        for rule, count in found.items():
            counted[rule] = counted.get(rule, 0) + count
    if isinstance(found, Firings):
        seconds = time.perf_counter() - start
        places = tuple(found.places)
        events.emit(events.PassRun(name, seconds, program, after, dict(found), places))
    return after


def _verify(name: str, before: Program, after: Program) -> None:
    try:
        verify(after)
        check_ports(before, after)
    except VerifyError as error:
        raise VerifyError(f"pass {name!r} broke the program: {error}") from None
