"""One composite on a target: lowered, whole where the backend claims it, and with stored weights.

Rows of a batch are also run by themselves and must be what they were beside the others.

The last form goes through core as a model's layers do: operands after the first are parameters,
which the backend may bring into a form of its own (``prepack``) before anything runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import ptir.functional  # noqa: F401  fills the table of functionals
from ptir.backend import Executable, Options
from ptir.backend.interpreter import query_of
from ptir.errors import UnsupportedError
from ptir.ir.program import Program
from ptir.ops import OPS
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir_testsuite.corpus.composites import BATCHED, CompositeCall
from ptir_testsuite.corpus.profiles import names_of, profiles_of
from ptir_testsuite.corpus.sweeps import LETTERS
from ptir_testsuite.oracles.composites import Found, by_formula
from ptir_testsuite.oracles.floats import Array, doubles
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.kinds.formulas import run_with_parameters, worst_share
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.raised import told
from ptir_testsuite.running.turns import in_turns

STORED: Final = "with stored weights"


@dataclass(frozen=True)
class _Form:
    """One of the ways to run a composite."""

    name: str
    program: Program

    @property
    def is_stored(self) -> bool:
        """Whether some of its inputs are parameters."""
        return any(port.kind == "parameter" for port in self.program.ports)


def run_composite(item: CompositeCall, setting: Setting) -> Row:
    """Run the call in every form and compare each with the formula."""
    start = time.perf_counter()
    arrays = item.arrays()
    program = item.program(arrays)
    profiles = profiles_of(OPS["add"], names_of(item.dtypes))  # those of its dtypes, and core
    row = Row(item.id, item.name, item.call, item.dtypes, tuple(sorted(profiles)), Outcome.PASS)
    row = replace(row, claimed=profiles <= setting.claims)
    try:
        forms = _forms(program, setting)
        shares = [_judged(form, item, arrays, setting) for form in forms]
        shares += _alone(item, arrays, setting)
        row = replace(row, worst_share=max(shares), facts={"forms": [f.name for f in forms]})
    except Failed as failed:
        row = failed.ended(row, failed.message)
    except UnsupportedError as error:
        row = replace(row, outcome=Outcome.UNSUPPORTED, phase="compile", message=str(error))
    return replace(row, seconds=time.perf_counter() - start)


def _forms(program: Program, setting: Setting) -> list[_Form]:
    backend, device = setting.target.backend, setting.target.device
    context = PassContext(backend, device)
    forms = [_Form("lowered", legalize(program, context))]
    query = query_of(program.main, program.main.instructions[0])
    if backend.refusal(query, device) is None:
        forms.append(_Form("claimed", program))
    if len(program.inputs) > 1:
        forms.append(_Form(STORED, _stored(program)))
    return forms


def _stored(program: Program) -> Program:
    """The program with its operands after the first as parameters."""
    first, *others = program.ports
    return replace(program, ports=(first, *(replace(p, kind="parameter") for p in others)))


def _judged(form: _Form, item: CompositeCall, arrays: list[Array], setting: Setting) -> float:
    """The worst error as a share of its bound; raises ``Failed`` beyond it."""
    operands = {LETTERS[0]: arrays}
    found: Mapping[str, Sequence[Any]]
    if form.is_stored:
        found = {LETTERS[0]: _run(form, item, arrays, setting)}
    else:
        operands |= {letter: item.arrays(letter) for letter in LETTERS[1:]}
        found = _in_turns(form, item, operands, setting)
    with np.errstate(all="ignore"):
        shares = [
            _compared(form, item, doubles(one), wanted)
            for letter in operands
            for one, wanted in zip(found[letter], _expected(item, operands[letter]), strict=True)
        ]
    return max(shares)


def _in_turns(
    form: _Form, item: CompositeCall, operands: Mapping[str, list[Array]], setting: Setting
) -> Mapping[str, Sequence[Any]]:
    """What one executable gives on changing operands."""
    executable = _built(form, item, setting)
    what = f"{item.id} {form.name}"
    return in_turns(what, lambda letter: _ran(executable, form, item, operands[letter], setting))


def _expected(item: CompositeCall, arrays: list[Array]) -> list[Found]:
    """What the formula gives, for each result."""
    wide = [doubles(a) if a.dtype.kind not in "biu" else a for a in arrays]
    return by_formula(item.name, wide, item.row[1])


def _alone(item: CompositeCall, arrays: list[Array], setting: Setting) -> Iterator[float]:
    """The first and the last row of a batch by themselves, held to what they are beside others."""
    batched = BATCHED.get(item.name, ())
    count = min((len(arrays[place]) if arrays[place].ndim else 0 for place in batched), default=0)
    if count < 2 or item.row[1].get("axis") == 0:
        return
    with np.errstate(all="ignore"):
        whole = _expected(item, arrays)
        sizes = [np.broadcast_to(one.magnitude, one.result.shape) for one in whole]
        for row in (slice(0, 1), slice(count - 1, count)):
            rows = [a[row] if place in batched else a for place, a in enumerate(arrays)]
            form = next(
                form for form in reversed(_forms(item.program(rows), setting)) if not form.is_stored
            )
            form = replace(form, name=f"{form.name}, row {row.start} alone")
            ran = _run(form, item, rows, setting)
            for found, one, size in zip(ran, whole, sizes, strict=True):
                beside = Found(one.result[row], size[row], one.roundings)
                yield _compared(form, item, doubles(found), beside)


def _compared(form: _Form, item: CompositeCall, found: Array, expected: Found) -> float:
    if found.shape != expected.result.shape:
        text = f"the result has shape {found.shape}, not {expected.result.shape}"
        raise Failed(Outcome.MISMATCH, "compare", f"{item.id} {form.name}: {text}")
    if not found.size:
        return 0.0
    what = f"{item.name} {dict(item.row[1])}, {form.name}"
    operands = ", ".join(map(str, item.row[0]))
    return worst_share(found, expected, what, f"  operands {operands}\n  case {item.id}")


def _run(form: _Form, item: CompositeCall, arrays: list[Array], setting: Setting) -> list[Any]:
    if not form.is_stored:
        return _ran(_built(form, item, setting), form, item, arrays, setting)
    with _telling(item, form):
        return run_with_parameters(form.program, arrays, setting)


def _built(form: _Form, item: CompositeCall, setting: Setting) -> Executable:
    with _telling(item, form):
        return setting.target.backend.compile(form.program, setting.target.device, Options())


def _ran(
    executable: Executable,
    form: _Form,
    item: CompositeCall,
    arrays: list[Array],
    setting: Setting,
) -> list[Any]:
    """The results of one run, which must leave its operands as they are."""
    backend, device = setting.target.backend, setting.target.device
    with _telling(item, form):
        handles = [backend.upload(a, device) for a in arrays]
        results = executable.run(handles)
        backend.synchronize(device)
        found = [backend.download(result, device) for result in results]
        after = [backend.download(h, device) for h in handles]
    for place, (now, before) in enumerate(zip(after, arrays, strict=True)):
        if np.asarray(now).tobytes() != before.tobytes():
            text = f"{item.id} {form.name}: operand {place} was changed by the run"
            raise Failed(Outcome.MISMATCH, "execute", text)
    return found


@contextmanager
def _telling(item: CompositeCall, form: _Form) -> Iterator[None]:
    """What the backend raises speaks against it, unless it says that it does not support."""
    try:
        yield
    except UnsupportedError:
        raise
    except Exception as error:
        text = f"{item.id} {form.name}: {told('execute', error)}"
        raise Failed(Outcome.ERROR, "execute", text) from error
