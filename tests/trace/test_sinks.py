"""Dumps hold the programs that were compiled; statistics add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ptir import events, ops
from ptir.errors import UsageError
from ptir.ir import Port, Program, freeze
from ptir.ir.graph import source
from ptir.ir.printer import print_program
from ptir.trace import DumpSink, StatsSink, listening_to
from ptir.types import spec


def program(*names: str) -> Program:
    x = source(spec("f32", 2))
    y = x
    for name in names:
        y = ops.op(name)(y)
    return Program(freeze([y], [x]), (Port("x"),))


FIRST, SECOND, THIRD = program("neg", "neg"), program("neg"), program("exp")


def text(of: Program) -> str:
    """What a dump of it holds."""
    return print_program(of, locations=True) + "\n"


def happen() -> None:
    events.emit(events.PassRun("fold", 0.25, FIRST, SECOND, {"rule": 2}))
    events.emit(events.PassRun("cse", 0.5, SECOND, SECOND))
    events.emit(events.ProgramCompiled(FIRST, SECOND, "tiny", "Tiny One", 1.0))
    events.emit(events.ProgramRun(SECOND, "tiny", "Tiny One", 2.0))


def test_dump_of_all_has_each_pass_that_changed_the_program(tmp_path: Path) -> None:
    with listening_to([DumpSink(tmp_path / "d", "all")]):
        happen()
    files = {path.name: path.read_text() for path in (tmp_path / "d").glob("*.ptir")}
    assert files == {
        "000-captured.ptir": text(FIRST),
        "000-01-fold.ptir": text(SECOND),
        "000-optimized.ptir": text(SECOND),
    }
    assert text(SECOND).count(f'loc("{__file__}":') == 1
    lines = (tmp_path / "d" / "index.jsonl").read_text().splitlines()
    _, fold, optimized = map(json.loads, lines)
    assert (fold["pass"], fold["seconds"], fold["rewrites"]) == ("fold", 0.25, {"rule": 2})
    assert (optimized["backend"], optimized["digest"]) == ("tiny", SECOND.digest)


def test_dump_of_compilations_leaves_passes_out_and_numbers_them(tmp_path: Path) -> None:
    with listening_to([DumpSink(tmp_path, "compile")]):
        happen()
        events.emit(events.ProgramCompiled(THIRD, THIRD, "tiny", "Tiny One", 1.0))
    names = sorted(path.name for path in tmp_path.glob("*.ptir"))
    assert names == [f"00{i}-{label}.ptir" for i in (0, 1) for label in ("captured", "optimized")]
    assert (tmp_path / "001-captured.ptir").read_text() == text(THIRD)


def test_compilation_that_failed_keeps_its_passes_to_itself(tmp_path: Path) -> None:
    with listening_to([DumpSink(tmp_path, "all")]):
        events.emit(events.PassRun("fold", 0.25, THIRD, FIRST))
        events.emit(events.PassRun("fold", 0.25, FIRST, SECOND))
        events.emit(events.PassRun("other", 0.25, THIRD, SECOND))
        events.emit(events.ProgramCompiled(THIRD, SECOND, "tiny", "Tiny One", 1.0))
    names = sorted(path.name for path in tmp_path.glob("*.ptir"))
    assert names == [
        *("000-01-fold.ptir", "000-02-fold.ptir", "000-captured.ptir"),
        *("001-01-other.ptir", "001-captured.ptir", "001-optimized.ptir"),
    ]


def test_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=r"dump folder .*file"):
        DumpSink(tmp_path / "file")
    with pytest.raises(UsageError, match="unknown dump mode 'some'"):
        DumpSink(tmp_path, "some")  # type: ignore[arg-type]


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
