"""The pipeline: every pass in the order in which it runs, and how it is run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from ptir import events
from ptir.backend.contract import BackendPass
from ptir.errors import PluginError, VerifyError
from ptir.ir.location import UNKNOWN, located
from ptir.ir.program import Port, Program
from ptir.ops.verify import verify
from ptir.passes.canonicalize import canonicalize
from ptir.passes.context import Pass, PassContext
from ptir.passes.cse import cse
from ptir.passes.dce import dce
from ptir.passes.legalize import legalize
from ptir.passes.lift_params import lift_params
from ptir.passes.prepack import prepack
from ptir.passes.raise_composites import AS_WRITTEN, raise_composites
from ptir.passes.select import select
from ptir.rewrite.rules import rules
from ptir.switches import switched_on

PLUGGED: Final[dict[str, BackendPass]] = {}
"""The passes of plugins by their owner, in the order in which they were added."""


def plug_in(owner: str, added: BackendPass) -> None:
    """Run ``added`` on every program from now on; one name per owner, else ``PluginError``."""
    key = f"{owner}/{added.name}"
    if key in PLUGGED:
        raise PluginError(f"pass {added.name!r} of {owner} is added twice; choose another name")
    PLUGGED[key] = added


@dataclass(frozen=True)
class Stage:
    """One place in the pipeline: a pass of ours, or the backend's and plugins' at a point."""

    name: str
    run: Pass | None = field(default=None, compare=False)
    point: Literal["pre", "cleanup"] | None = None

    def passes(self, context: PassContext) -> Iterator[tuple[str, Pass]]:
        """The passes to run here, with their names."""
        if self.run is not None:
            yield self.name, self.run
        for owner, own in (
            *((context.backend.name, own) for own in context.backend.passes()),
            *((key.partition("/")[0], own) for key, own in PLUGGED.items()),
        ):
            if own.point == self.point:
                yield f"{owner}: {own.name}", _adapted(own)


def _adapted(own: BackendPass) -> Pass:
    return lambda program, context: own.run(program)


PIPELINE: Final[tuple[Stage, ...]] = (
    Stage("canonicalize", canonicalize),
    Stage("cse", cse),
    Stage("dce", dce),
    Stage("backend pre", point="pre"),
    Stage("raise", raise_composites),
    Stage("select", select),
    Stage("legalize", legalize),
    Stage("lift_params", lift_params),
    Stage("canonicalize", canonicalize),
    Stage("cse", cse),
    Stage("dce", dce),
    Stage("backend cleanup", point="cleanup"),
    Stage("prepack", prepack),
)


def pipeline_key(pipeline: tuple[Stage, ...] = PIPELINE) -> str:
    """A digest of the stages and rules: part of the key of every plan that they made."""
    parts = [*(stage.name for stage in pipeline), *PLUGGED]
    parts += [AS_WRITTEN] if switched_on(AS_WRITTEN) else []
    parts += [f"{rule.name}: {rule.text}" for rule in rules()]
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
    counted = dict(context.rewrites)
    start = time.perf_counter()
    with located(UNKNOWN):  # what a pass makes for no instruction comes from none
        after = run(program, context)
    if events.listening():
        seconds = time.perf_counter() - start
        fired = _difference(context.rewrites, counted)
        events.emit(events.PassRun(name, seconds, program, after, fired))
    return after


def _difference(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: n - before.get(name, 0) for name, n in now.items() if n > before.get(name, 0)}


def _verify(name: str, before: Program, after: Program) -> None:
    try:
        verify(after)
        _check_ports(before, after)
    except VerifyError as error:
        raise VerifyError(f"pass {name!r} broke the program: {error}") from None


def _check_ports(before: Program, after: Program) -> None:
    names = [port.name for port in after.ports]
    if len(set(names)) != len(names):
        raise VerifyError(f"port names repeat: {', '.join(names)}")
    kept, found = _inputs(before), _inputs(after)
    if kept != found:
        raise VerifyError(f"inputs are {_listed(found)}; they must stay {_listed(kept)}")


def _inputs(program: Program) -> list[Port]:
    return [port for port in program.ports if port.kind == "input"]


def _listed(ports: list[Port]) -> str:
    return ", ".join(port.name for port in ports) or "none"
