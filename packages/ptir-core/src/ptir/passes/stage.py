"""Stages: one place in the pipeline each, a pass of ours or those of the backend and plugins."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ptir.backend.contract import BackendPass, Point
from ptir.errors import PluginError, PtirError, VerifyError
from ptir.ir.program import Port, Program
from ptir.passes.context import Pass, PassContext
from ptir.rewrite.engine import cause

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
    check_ports(before, after)
    if after.outputs != before.outputs:
        found, wanted = (", ".join(map(str, p.outputs)) for p in (after, before))
        raise VerifyError(f"its outputs are {found}; they must stay {wanted}")


def check_ports(before: Program, after: Program) -> None:
    """Raise ``VerifyError`` where names repeat, or inputs are not those of before."""
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
