"""The pipeline: its order, its key, its events and what is checked in between."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ptir import events
from ptir.backend.contract import BackendPass
from ptir.errors import VerifyError
from ptir.ir.graph import freeze, source
from ptir.ir.program import Port, Program
from ptir.ops.record import OPS
from ptir.passes import PIPELINE, PassContext, Stage, optimize, pipeline_key
from ptir.types import spec


def program() -> Program:
    x = source(spec("f32", 4))
    return Program(freeze([OPS["neg"](OPS["neg"](OPS["exp"](x)))], [x]), (Port("x"),))


def test_order_is_the_one_of_the_design() -> None:
    assert [stage.name for stage in PIPELINE] == [
        *("canonicalize", "cse", "dce", "backend pre", "raise", "hoist takes"),
        *("backend raised", "select"),
        *("backend selected", "legalize", "lift_params"),
        *("canonicalize", "cse", "dce", "backend cleanup", "prepack"),
    ]


def test_key_changes_with_the_pipeline() -> None:
    assert pipeline_key() == pipeline_key(PIPELINE)
    assert len({pipeline_key(), pipeline_key(PIPELINE[1:]), pipeline_key(PIPELINE[::-1])}) == 3


def test_every_pass_is_reported_with_its_own_rewrites(context: PassContext) -> None:
    seen: list[events.Event] = []
    remove = events.subscribe(seen.append)
    try:
        optimize(program(), context)
    finally:
        remove()
    runs = [event for event in seen if isinstance(event, events.PassRun)]
    assert [r.name for r in runs] == [s.name for s in PIPELINE if s.run is not None]
    assert runs[0].rewrites == {"neg neg": 1}
    assert all(run.rewrites == {} for run in runs[1:])
    assert all(a.after == b.before for a, b in pairwise(runs))
    assert context.rewrites == {"neg neg": 1}


def test_backend_passes_run_at_their_point(context: PassContext, backend) -> None:
    order: list[str] = []

    def noting(name: str):
        return lambda given: order.append(name) or given

    backend.own = (
        BackendPass("last", "cleanup", noting("last")),
        BackendPass("first", "pre", noting("first")),
    )
    optimize(program(), context)
    assert order == ["first", "last"]


def broken(given: Program) -> Program:
    (exp,) = given.main.instructions
    wrong = replace(exp, types=(spec("f32", 5),))
    return replace(given, main=replace(given.main, instructions=(wrong,)))


def renamed(given: Program) -> Program:
    return replace(given, ports=(Port("y"),))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (broken, r"pass 'paper: bad' broke the program: .*exp"),
        (renamed, r"pass 'paper: bad' broke the program: inputs are y; they must stay x"),
    ],
)
def test_verification_names_the_pass_that_broke_it(
    context: PassContext, backend, monkeypatch: pytest.MonkeyPatch, run, message: str
) -> None:
    backend.own = (BackendPass("bad", "cleanup", run),)
    optimize(program(), context)
    monkeypatch.setenv("PTIR_VERIFY", "1")
    with pytest.raises(VerifyError, match=message):
        optimize(program(), context)


def test_repeated_port_names_are_refused_between_passes(
    context: PassContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_VERIFY", "1")
    x, w = source(spec("f32", 4)), source(spec("f32", 4))
    ports = (Port("x"), Port("w", "parameter"))
    before = Program(freeze([OPS["add"](x, w)], [x, w]), ports)
    twice = Stage("twice", lambda p, c: replace(p, ports=(Port("x"), Port("x", "parameter"))))
    with pytest.raises(VerifyError, match="pass 'twice' broke the program: port names repeat"):
        optimize(before, context, (twice,))
