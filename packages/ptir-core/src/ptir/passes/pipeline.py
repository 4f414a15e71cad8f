"""The pipeline: every pass in the order in which it runs, and how it is run."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ptir import events
from ptir.backend.contract import BackendPass, Point
from ptir.errors import PluginError, PtirError, VerifyError
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
from ptir.rewrite.engine import cause
from ptir.rewrite.firings import Firings
from ptir.rewrite.pattern_table import ADDED
from ptir.rewrite.plugged import rules_in_force
from ptir.switches import FAST_MATH, switched_on

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
    point: Point | None = None

    def passes(self, context: PassContext) -> Iterator[tuple[str, Pass]]:
        """The passes to run here, with their names."""
        if self.run is not None:
            yield self.name, self.run
        for own in context.backend.passes():
            if own.point == self.point:
                yield f"{context.backend.name}: {own.name}", _of_backend(own)
        for key, added in PLUGGED.items():
            if added.point == self.point:
                owner = key.partition("/")[0]
                yield f"{owner}: {added.name}", _of_plugin(owner, added)


def _of_backend(own: BackendPass) -> Pass:
    """A pass that the backend may not do without: what it raises ends the run."""

    def run(program: Program, context: PassContext) -> Program:
        try:
            return own.run(program)
        except PtirError:
            raise
        except Exception as error:
            said = f"backend {context.backend.name}: pass {own.name!r} failed: {cause(error)}"
            raise PluginError(f"{said}; correct it, or choose another backend") from error

    return run


def _of_plugin(owner: str, added: BackendPass) -> Pass:
    """A pass that may be left out: one that fails does nothing, and a warning says so."""

    def run(program: Program, context: PassContext) -> Program:
        try:
            after = added.run(program)
            _check_kept(program, after)
        except Exception as error:  # noqa: BLE001  others' code: the run goes on without it
            said = f"plugin {owner}: pass {added.name!r} failed: {cause(error)}"
            said = f"{said}; this program is compiled without it, correct it"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
            return program
        return after

    return run


def _check_kept(before: Program, after: Program) -> None:
    """Raise ``VerifyError`` for what no pass may change."""
    if not isinstance(after, Program):
        raise VerifyError(f"it returned {type(after).__name__}, not a Program")
    _check_ports(before, after)
    if after.outputs != before.outputs:
        found, wanted = (", ".join(map(str, p.outputs)) for p in (after, before))
        raise VerifyError(f"its outputs are {found}; they must stay {wanted}")


PIPELINE: Final[tuple[Stage, ...]] = (
    Stage("canonicalize", canonicalize),
    Stage("cse", cse),
    Stage("dce", dce),
    Stage("backend pre", point="pre"),
    Stage("raise", raise_composites),
    Stage("backend raised", point="raised"),
    Stage("select", select),
    Stage("backend selected", point="selected"),
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
