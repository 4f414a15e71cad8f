"""Faults planted in what builds kernels are found by the verifier alone, before any compiler.

Each row puts a fault into one place of the generator and compiles a program that passes there, for
a device that builds nothing: no compiler could notice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pytest
from paper import DEVICE, GroupsBackend, PaperBackend

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture import call
from ptir.codegen.compile import compile_block
from ptir.codegen.context import Context
from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Var
from ptir.codegen.expressions.index import axis
from ptir.codegen.families.linear.gemv_cooperative import CooperativeGemv
from ptir.codegen.families.reduction.rows import RowEmitter
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.statements import Statements
from ptir.codegen.kernel_ir.values import Lane
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.workgroup import Workgroup
from ptir.codegen.weights.panels import Panels
from ptir.errors import VerifyError
from ptir.ir.program import Port, Program
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir.types import BOOL, F32, I32, spec

Patch = pytest.MonkeyPatch
BACKENDS: Final = {"serial": PaperBackend(), "coop": GroupsBackend()}


def _map() -> Program:
    return ptir.capture(lambda x: x * 2.0 + F.exp(x), spec("f32", 3, 40))


def _softmax() -> Program:
    return ptir.capture(F.softmax, spec("f32", 3, 200))


def _linear() -> Program:
    """Two rows, a norm in front."""
    made = ptir.capture(
        lambda x, g, w: F.linear(F.rms_norm(x, g, epsilon=1e-6), w),
        *(spec("f32", 2, 64), spec("f32", 64), spec("f32", 64, 48)),
    )
    return _with_parameters(made, 2)


def _prompt() -> Program:
    """Many rows of bf16 weights."""
    made = ptir.capture(F.linear, spec("f32", 64, 64), spec("bf16", 64, 64))
    return _with_parameters(made, 1)


def _wide_softmax() -> Program:
    return ptir.capture(F.softmax, spec("f32", 3, 5000))


def _narrow_scan() -> Program:
    """A line that a group goes along, whose members share bytes."""
    return ptir.capture(lambda x: call("cumulative", x, axis=1, kind="sum"), spec("u8", 2, 500))


def _few_members() -> Expr:
    return Apply(BOOL, "lt", Coordinate(I32, axis("member", 32)), Const(I32, 3))


def _with_parameters(made: Program, count: int) -> Program:
    ports = made.ports[:-count], made.ports[-count:]
    named = (*ports[0], *(Port(f"w{n}", "parameter") for n, _ in enumerate(ports[1])))
    return replace(made, ports=named)


@cache
def optimized_for(schedule: str, make: Callable[[], Program]) -> Program:
    """The program as the generator gets it; nothing is planted there."""
    return optimize(make(), PassContext(BACKENDS[schedule], DEVICE, ()))


def compiled(schedule: str, make: Callable[[], Program]) -> None:
    """Write the kernels."""
    device = Target(BACKENDS[schedule], DEVICE).backend.opened(DEVICE).device  # type: ignore[attr-defined]
    context = replace(Context.of(device), schedule=schedule)
    compile_block(optimized_for(schedule, make).main, context, Options())


def around(target: type, name: str, wrong: Callable[..., Any]) -> Callable[[Patch], None]:
    """Plant ``wrong(right, self, ...)`` in place of a method."""

    def plant(patch: Patch) -> None:
        right = getattr(target, name)
        patch.setattr(target, name, lambda self, *a, **k: wrong(right, self, *a, **k))

    return plant


def emitting(kind: type, wrong: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """Have every statement of a kind be another one; None leaves it out."""

    def plant(patch: Patch) -> None:
        body = Statements.body

        def changed(statements: tuple[Any, ...]) -> tuple[Any, ...]:
            found = []
            for one in statements:
                for field in ("body", "otherwise"):
                    if getattr(one, field, None):
                        one = one._replace(**{field: changed(getattr(one, field))})
                made = wrong(one) if isinstance(one, kind) else one
                found += [] if made is None else [made]
            return tuple(found)

        def planted(self: Any) -> Any:
            head, each = body(self)
            return changed(head), changed(each)

        patch.setattr(Statements, "body", planted)

    return plant


@contextmanager
def _one_further(right: Any, self: Any, axis: Any, first: Any, end: Any, *a: Any, **k: Any) -> Any:
    """A loop that ends one later."""
    later = end + 1 if isinstance(end, int) else Apply(I32, "add", end, Const(I32, 1))
    with right(self, axis, first, later, *a, **k):
        yield


def _beyond(one: nodes.Let) -> nodes.Let:
    """A value of lanes takes the one behind the last."""
    if not isinstance(one.value, Apply):
        return one
    args = (Lane(arg.of, 16) if isinstance(arg, Lane) else arg for arg in one.value.args)
    return one._replace(value=Apply(one.value.dtype, one.value.op, *args))


@dataclass(frozen=True)
class Row:
    """A fault: where it is, the schedule and program that meet it, and what is said."""

    plant: Callable[[Patch], None]
    program: Callable[[], Program]
    said: str
    schedule: str = "serial"


FAULTS: Final = {
    "an output is declared as read only": Row(
        around(Writer, "memory", lambda right, self, v, d, written=False: right(self, v, d)),
        _map,
        "is written",
    ),
    "a loop goes one further": Row(
        around(Statements, "loop", _one_further), _softmax, "is taken for below"
    ),
    "a named value is not written down": Row(
        around(Statements, "let", lambda right, self, value, name=None: Var(value.dtype, "lost")),
        _map,
        "is read and not declared",
    ),
    "a variable is not declared": Row(
        emitting(nodes.Declare, lambda one: None), _softmax, "declared"
    ),
    "a value that does not change is assigned": Row(
        around(
            Statements,
            "declare",
            lambda right, self, value, *names: self.let(value, *names[:1]),
        ),
        _softmax,
        "does not change",
    ),
    "a store begins one element further": Row(
        emitting(nodes.Store, lambda one: one._replace(at=one.at + 1)), _map, "elements"
    ),
    "a store is of another type": Row(
        emitting(nodes.Store, lambda one: one._replace(dtype=I32)), _map, "i32"
    ),
    "a private array is an element short": Row(
        around(
            RowEmitter,
            "_array",
            lambda right, self, n: self.writer.array(n, self.rows.size - 1, F32),
        ),
        _softmax,
        "elements",
    ),
    "panels are taken for wider ones": Row(
        around(Panels, "word", lambda right, self, o, w: right(self, o, w) + 16),
        _linear,
        "elements",
    ),
    "whole numbers are added to floats": Row(
        emitting(
            nodes.Let,
            lambda one: (
                one._replace(value=Apply(F32, "add", one.value, Const(I32, 1)))
                if one.variable.dtype == F32 and not one.variable.wide
                else one
            ),
        ),
        _softmax,
        "i32",
    ),
    "a lane beyond the last is read": Row(emitting(nodes.Let, _beyond), _softmax, "lane 16"),
    "a loop is left where there is none": Row(
        around(Statements, "body", lambda right, self: ((), (*right(self)[1], nodes.Break()))),
        _map,
        "loop",
    ),
    "an argument is taken that nobody reads": Row(
        around(Writer, "store", lambda right, self, *a: (self.memory(0, F32), right(self, *a))),
        lambda: ptir.capture(lambda x, y: (F.softmax(x), y * 2.0), *[spec("f32", 3, 40)] * 2),
        "never read",
    ),
    "an argument has another name": Row(
        emitting(nodes.Store, lambda one: one._replace(memory="b99")), _map, "b99"
    ),
    "a barrier is waited for by some members": Row(
        emitting(nodes.Barrier, lambda one: nodes.If(_few_members(), (one,))),
        _wide_softmax,
        "a barrier stands where only some threads may come",
        "coop",
    ),
    "members exchange across more than one bit": Row(
        around(
            Workgroup, "_shuffle", lambda right, self, held, how, step: right(self, held, how, 3)
        ),
        _softmax,
        "across 3",
        "coop",
    ),
    "shared memory is an element short": Row(
        around(Statements, "shared", lambda right, self, dtype, size: right(self, dtype, size - 1)),
        _linear,
        "elements",
        "coop",
    ),
    "shared bytes are written as floats": Row(
        emitting(nodes.Store, lambda one: one._replace(dtype=F32) if one.dtype == I32 else one),
        _narrow_scan,
        "holds u8 and is written as f32",
        "coop",
    ),
    "shared bytes hold numbers of another type": Row(
        around(
            Writer,
            "put",
            lambda right, self, array, place, one, *of: right(
                self, array, place, Apply(I32, "convert", one), *of
            ),
        ),
        _narrow_scan,
        "i32 is stored as u8",
        "coop",
    ),
    "16 bytes are read where no 16 bytes begin": Row(
        emitting(nodes.LoadWords, lambda one: one._replace(at=one.at + 1)),
        _linear,
        "4 may not divide",
        "coop",
    ),
    "a quarter of a panel is taken for a whole one": Row(
        around(
            CooperativeGemv,
            "_output",
            lambda right, self, c: self.panel * 64 + self.quarter * 4 + c,
        ),
        _linear,
        "elements",
        "coop",
    ),
    "sums of matrices do not change": Row(
        emitting(nodes.Declare, lambda one: None), _prompt, "is assigned and not declared", "coop"
    ),
    "words are copied to where no 16 bytes begin": Row(
        emitting(nodes.AsyncCopy, lambda one: one._replace(to=one.to + 1)),
        _prompt,
        "4 may not divide",
        "coop",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_what_builds_kernels_breaks_a_rule(name: str, monkeypatch: Patch) -> None:
    row = FAULTS[name]
    monkeypatch.setenv("PTIR_VERIFY", "1")
    compiled(row.schedule, row.program)
    row.plant(monkeypatch)
    with pytest.raises(VerifyError, match=f"is not legal: .*{row.said}"):
        compiled(row.schedule, row.program)


def test_there_are_more_than_twenty() -> None:
    assert len(FAULTS) > 20
