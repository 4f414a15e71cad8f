"""Statistics add up."""

from __future__ import annotations

import pytest

from ptir import events, ops
from ptir.ir import Port, Program, freeze
from ptir.ir.graph import source
from ptir.trace import StatsSink, listening_to
from ptir.types import spec


def program(*names: str) -> Program:
    x = source(spec("f32", 2))
    y = x
    for name in names:
        y = ops.op(name)(y)
    return Program(freeze([y], [x]), (Port("x"),))


FIRST, SECOND, THIRD = program("neg", "neg"), program("neg"), program("exp")


def happen() -> None:
    events.emit(events.PassRun("fold", 0.25, FIRST, SECOND, {"rule": 2}))
    events.emit(events.PassRun("cse", 0.5, SECOND, SECOND))
    events.emit(events.ProgramCompiled(FIRST, SECOND, "tiny", "Tiny One", 1.0))
    events.emit(events.ProgramRun(SECOND, "tiny", "Tiny One", 2.0))


def test_statistics_add_up_and_the_profile_is_sorted() -> None:
    stats = StatsSink()
    with listening_to([stats]):
        happen()
        happen()
        events.emit(events.ParameterLoaded("wte", 64, 0.125))
        events.emit(events.KernelsBuilt("0123456789", "paper", 0.0625, False))
        events.emit(events.KernelsBuilt("0123456789", "paper", 0.03125, True))
    assert stats.summary() == {
        "programs_compiled": 2,
        "compile_seconds": 2.0,
        "kernel_files_built": 1,
        "kernel_files_restored": 1,
        "build_seconds": 0.09375,
        "pass_seconds": 1.5,
        "programs_run": 2,
        "run_seconds": 4.0,
        "parameters_loaded": 1,
        "parameter_bytes": 64,
        "load_seconds": 0.125,
    }
    rows = [(row.kind, row.name, row.total.seconds) for row in stats.profile()]
    assert rows[0] == ("run", SECOND.digest[:8], 4.0)
    assert [seconds for *_, seconds in rows] == [4.0, 2.0, 1.0, 0.5, 0.125, 0.0625, 0.03125]


def test_nobody_listens_after_the_block_even_when_it_fails() -> None:
    with pytest.raises(ZeroDivisionError), listening_to([StatsSink()]):
        raise ZeroDivisionError
    assert not events.listening()
