"""The forms of a random program that a backend runs: compiled together, run one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ptir.backend import Executable, Options
from ptir.errors import UnsupportedError
from ptir.ir.program import Program
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir.passes.pipeline import optimize
from ptir_testsuite.corpus.programs import Drawn
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.fences import PATTERNS, Fences
from ptir_testsuite.running.outcomes import Outcome
from ptir_testsuite.running.raised import named, raised_at, told

WHOLE: Final = "every value an output"


@dataclass(frozen=True)
class Form:
    """A program to run on the inputs that were drawn; ``ports`` are their numbers."""

    name: str
    program: Program
    ports: tuple[int, ...]
    options: Options


def forms_of(drawn: Drawn, setting: Setting) -> list[Form]:
    """What the backend runs of a program; of the first, every value is an output."""
    program = drawn.program
    every = replace(program.main, outputs=tuple(range(len(program.main.types))))
    return [
        _form(WHOLE, _made(legalize, replace(program, main=every), setting), drawn),
        as_drawn(drawn, setting),
        _form("optimized", _made(optimize, program, setting), drawn),
    ]


def as_drawn(drawn: Drawn, setting: Setting) -> Form:
    """The program as it is, for what the backend takes."""
    return _form("as drawn", _made(legalize, drawn.program, setting), drawn)


def _made(
    make: Callable[[Program, PassContext], Program], program: Program, setting: Setting
) -> Program:
    """What core makes of a program; what an op's decomposition raises there is its author's."""
    try:
        return make(program, PassContext(setting.target.backend, setting.target.device))
    except UnsupportedError:
        raise
    except Exception as error:
        if not raised_at(error):
            raise
        text = f"what runs in place of the program raised {named(error)} at {raised_at(error)}"
        raise Failed(Outcome.ERROR, "compile", text) from error


def _form(name: str, program: Program, drawn: Drawn) -> Form:
    ports = tuple(int(port.name[1:]) for port in program.ports)
    alike = (tuple(i for i, p in enumerate(ports) if p in group) for group in drawn.aliases)
    options = Options(aliases=tuple(group for group in alike if len(group) > 1))
    return Form(name, program, ports, options)


def compiled(forms: Sequence[Form], setting: Setting) -> list[Executable]:
    """All forms, compiled at once; raises ``Failed`` or ``UnsupportedError``."""
    backend, device = setting.target.backend, setting.target.device
    with _told("compile"):
        return backend.compile_all([(form.program, form.options) for form in forms], device)


def outputs(form: Form, executable: Executable, drawn: Drawn, setting: Setting) -> list[Any]:
    """What a run gives; what lies beside the outputs, and the inputs, must stay as they are."""
    backend, device = setting.target.backend, setting.target.device
    first = {v: group[0] for group in drawn.aliases for v in group}
    sources = [first.get(p, p) for p in form.ports]
    with _told("execute"):
        handles = {p: backend.upload(drawn.arrays[p], device) for p in dict.fromkeys(sources)}
        fences = Fences(form.program.main.output_types, setting.target, PATTERNS[0])
        results = executable.run([handles[p] for p in sources])
        backend.synchronize(device)
        found = [backend.download(r, device) for r in results]
        broken = fences.broken()
        after = [backend.download(handles[p], device) for p in sources]
    if broken:
        text = f"a tensor beside the results was overwritten: {broken}"
        raise Failed(Outcome.MISMATCH, "execute", text)
    for port, array in zip(form.ports, after, strict=True):
        if np.asarray(array).tobytes() != drawn.arrays[port].tobytes():
            raise Failed(Outcome.MISMATCH, "execute", f"input x{port} was changed by the run")
    return found


@contextmanager
def _told(phase: str) -> Iterator[None]:
    """What the backend raises speaks against it, unless it says that it does not support."""
    try:
        yield
    except UnsupportedError:
        raise
    except Exception as error:
        raise Failed(Outcome.ERROR, phase, told(phase, error)) from error
