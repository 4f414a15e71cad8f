"""Dumps hold the programs that were compiled and ran, and say why caches were missed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import events, ops
from ptir.backend.contract import Options
from ptir.capture.plan import PLANS, plan_for
from ptir.capture.plan_key import PlanKey, why_missed
from ptir.errors import CheckpointError, DeviceError, UsageError
from ptir.ir import Port, Program, freeze
from ptir.ir.graph import source
from ptir.ir.printer import print_program
from ptir.ops.policies import parse_override
from ptir.ops.reading import from_json, parse
from ptir.trace import DumpSink, Sink, StatsSink, listening_to, read_dump
from ptir.types import spec


def program(*names: str, size: int = 2) -> Program:
    x = source(spec("f32", size))
    y = x
    for name in names:
        y = ops.op(name)(y)
    return Program(freeze([y], [x]), (Port("x"),))


FIRST, SECOND, THIRD = program("neg", "neg"), program("neg"), program("exp")
WHERE = "tiny", "Tiny One"


def text(of: Program) -> str:
    """What a dump of it holds."""
    return print_program(of, locations=True) + "\n"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def programs(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.ptir")}


def compiling(captured: Program, name: str) -> None:
    events.emit(events.ProgramCompiling(captured, name, *WHERE))


def happen() -> None:
    compiling(FIRST, "_step")
    events.emit(events.PassRun("fold", 0.25, FIRST, SECOND, {"rule": 2}))
    events.emit(events.PassRun("cse", 0.5, SECOND, SECOND))
    kernels = (("map_0", 4, 1), ("", 0, 1))
    events.emit(events.KernelsWritten(SECOND, "c", "void map_0() {}", kernels))
    events.emit(events.ProgramCompiled(FIRST, SECOND, *WHERE, 1.0))


def test_each_program_has_a_folder_with_each_pass_that_changed_it(tmp_path: Path) -> None:
    with listening_to([DumpSink(tmp_path / "d", "all")]):
        happen()
    assert programs(tmp_path / "d") == {
        "00000_step/program.ptir": text(FIRST),
        "00000_step/passes/01-fold.ptir": text(SECOND),
        "00000_step/optimized.ptir": text(SECOND),
    }
    folder = tmp_path / "d" / "00000_step"
    assert from_json(json.loads((folder / "program.json").read_text())) == FIRST
    assert text(SECOND).count(f'loc("{__file__}":') == 1
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["status"], meta["backend"], meta["digest"]) == ("compiled", "tiny", FIRST.digest)
    assert meta["ports"] == [{"name": "x", "kind": "input", "type": "f32[2]"}]
    fold, cse = lines(tmp_path / "d" / "passes.jsonl")
    assert (fold["program"], fold["pass"], fold["seconds"]) == ("00000_step", "fold", 0.25)
    assert (fold["rewrites"], fold["file"], cse["file"]) == (
        {"rule": 2},
        "passes/01-fold.ptir",
        None,
    )
    assert (folder / "kernels" / "00.c").read_text() == "void map_0() {}"
    launches = json.loads((folder / "kernels" / "00.json").read_text())["launches"]
    assert [one["kernel"] for one in launches] == ["map_0", "copy"]


def test_kernels_of_candidates_that_a_pass_timed_are_not_the_program_s(tmp_path: Path) -> None:
    with listening_to([DumpSink(tmp_path)]):
        compiling(FIRST, "step")
        events.emit(events.KernelsWritten(THIRD, "c", "void candidate() {}", ()))
        events.emit(events.PassRun("select", 0.25, FIRST, SECOND))
        events.emit(events.KernelsWritten(SECOND, "cuda", "own", ()))
        events.emit(events.ProgramCompiled(FIRST, SECOND, *WHERE, 1.0))
    kernels = tmp_path / "00000_step" / "kernels"
    assert [path.name for path in sorted(kernels.iterdir())] == ["00.cu", "00.json"]
    assert (kernels / "00.cu").read_text() == "own"


def test_a_parameter_that_several_programs_read_is_kept_once(tmp_path: Path) -> None:
    weight = events.PortArray(lambda: np.ones(2, np.float32), ("store", "w"))
    plans = [plan_for(program(*n * ["neg"]), ptir.backend("ref"), name=f"p{n}") for n in (1, 2)]
    with listening_to([DumpSink(tmp_path, inputs=True)]):
        for number, plan in enumerate(plans):
            events.emit(events.ProgramStarting(number, plan, *WHERE, lambda: {"w": weight}))
    metas = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("0*/meta.json"))]
    assert [meta["parameters"] for meta in metas] == 2 * [{"w": "parameters/00000.safetensors"}]
    assert len([*(tmp_path / "parameters").iterdir()]) == 1


def test_mode_of_compilations_leaves_passes_and_lists_out(tmp_path: Path) -> None:
    with listening_to([DumpSink(tmp_path, "compile")]):
        happen()
        compiling(THIRD, "other")
        events.emit(events.ProgramCompiled(THIRD, THIRD, *WHERE, 1.0))
        events.emit(events.CacheLookup("plans", "x", False, "why"))
    assert {*programs(tmp_path)} == {
        f"{folder}/{label}.ptir"
        for folder in ("00000_step", "00001_other")
        for label in ("program", "optimized")
    }
    assert not [*tmp_path.glob("*.jsonl")]


def test_compilation_that_failed_keeps_its_passes_to_itself(tmp_path: Path) -> None:
    with listening_to([DumpSink(tmp_path, "all")]):
        compiling(THIRD, "failed")
        events.emit(events.PassRun("fold", 0.25, THIRD, FIRST))
        compiling(THIRD, "again")
        events.emit(events.PassRun("other", 0.25, THIRD, SECOND))
        events.emit(events.ProgramCompiled(THIRD, SECOND, *WHERE, 1.0))
    found = {name for name in programs(tmp_path) if "program" not in name}
    assert found == {
        "00000_failed/passes/01-fold.ptir",
        "00001_again/passes/01-other.ptir",
        "00001_again/optimized.ptir",
    }
    assert json.loads((tmp_path / "00000_failed/meta.json").read_text())["status"] == "compiling"


def test_a_folder_that_was_dumped_into_before_grows(tmp_path: Path) -> None:
    for _ in range(2):
        with listening_to([DumpSink(tmp_path)]):
            happen()
    assert sorted(p.name for p in tmp_path.glob("0*")) == ["00000_step", "00001_step"]
    assert [one["program"] for one in lines(tmp_path / "passes.jsonl")] == [
        *("00000_step", "00000_step", "00001_step", "00001_step")
    ]


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=r"dump folder .*file"):
        DumpSink(tmp_path / "file")
    with pytest.raises(UsageError, match="unknown dump mode 'some'"):
        DumpSink(tmp_path, "some")  # type: ignore[arg-type]
    (tmp_path / "meta.json").write_text('{"kind": "ptir dump 2"}')
    with pytest.raises(CheckpointError, match=r"is of 'ptir dump 2'.*'ptir dump 1'"):
        DumpSink(tmp_path)


# --- what really happens ---


def _twice(x: Any) -> Any:
    return x + x


def test_every_run_has_a_line_before_and_behind_it_and_its_arrays(tmp_path: Path) -> None:
    double = ptir.jit(_twice)
    PLANS.clear()
    with listening_to([DumpSink(tmp_path, inputs=True)]):
        for value in (1.0, 2.0):
            x = ptir.tensor(np.full(3, value, np.float32), backend="ref")
            assert double(x).numpy().tolist() == [2 * value] * 3
    begun = [(one["event"], one.get("program")) for one in lines(tmp_path / "executions.jsonl")]
    assert begun == 2 * [("begin", "00000_twice"), ("end", None)]
    dumped = read_dump(tmp_path / "00000_twice")
    assert dumped.arrays["x0"].tolist() == [1.0, 1.0, 1.0]  # of the first run
    (made,) = ptir.run_program(dumped.program, dumped.arrays, "ref")
    assert made.tolist() == [2.0, 2.0, 2.0]
    assert parse((tmp_path / "00000_twice" / "optimized.ptir").read_text()).outputs


def test_a_program_that_was_compiled_before_is_dumped_when_it_runs(tmp_path: Path) -> None:
    x = ptir.tensor(np.ones(3, np.float32), backend="ref")
    double = ptir.jit(_twice)
    double(x)
    with listening_to([DumpSink(tmp_path)]):
        double(x)
        double(x)
    assert [p.name for p in sorted(tmp_path.glob("0*"))] == ["00000_twice"]
    meta = json.loads((tmp_path / "00000_twice" / "meta.json").read_text())
    assert meta["status"] == "compiled before"


def test_a_run_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ptir.tensor(np.ones(3, np.float32), backend="ref")
    double = ptir.jit(_twice)
    executable = double.prepare(x).executable

    def fail(inputs: object) -> None:
        raise DeviceError("the device burns")

    monkeypatch.setattr(executable, "run", fail)
    with listening_to([DumpSink(tmp_path)]), pytest.raises(DeviceError):
        double(x)
    *_, last = lines(tmp_path / "executions.jsonl")
    assert (last["event"], last["error"]) == ("failed", "DeviceError: the device burns")


def key(captured: Program = FIRST, **changed: Any) -> PlanKey:
    known = PlanKey(captured, "tiny:0", 0, Options(), (), "abc")
    return known._replace(**changed)


@pytest.mark.parametrize(
    ("asked", "known", "why"),
    [
        (key(), [], "nothing is compiled yet"),
        (key(SECOND), [key()], "program: other instructions on the same inputs"),
        (
            key(program("neg", size=3)),
            [key(), key(SECOND)],
            "program: input 0 is f32[3], known f32[2]",
        ),
        (key(target="c:0"), [key(SECOND), key()], "target 'c:0', known 'tiny:0'"),
        (
            key(options=Options(donated=frozenset({1}))),
            [key()],
            "options.donated [1], known []",
        ),
        (
            key(pipeline="x"),
            [key(pipeline="y"), key(SECOND)],
            "pipeline 'x', known 'y'",
        ),
        (key(pipeline="x"), [key(target="c:0"), key()], "pipeline 'x', known 'abc'"),
        (
            key(overrides=(parse_override("linear[M=1]=force=rows"),)),
            [key()],
            "overrides linear[M=1]=force=rows, known ()",
        ),
    ],
)
def test_a_missed_plan_names_the_part_of_the_key(
    asked: PlanKey, known: list[PlanKey], why: str
) -> None:
    assert why_missed(asked, known) == why


def test_signatures_and_plans_say_why_they_are_new(tmp_path: Path) -> None:
    double = ptir.jit(_twice)
    PLANS.clear()
    with listening_to([DumpSink(tmp_path)]):
        for size in (3, 3, 4):
            double(ptir.tensor(np.ones(size, np.float32), backend="ref"))
        ptir.jit(_twice)(ptir.tensor(np.ones(4, np.float32), backend="ref"))
    told = [(one["cache"], one["hit"], one["reason"]) for one in lines(tmp_path / "caches.jsonl")]
    assert [one for one in told if one[0] != "programs"] == [
        ("signatures", False, "it was never called"),
        ("plans", False, "nothing is compiled yet"),
        ("signatures", False, "other types or values of arguments"),
        ("plans", False, "program: input 0 is f32[4], known f32[3]"),
        ("signatures", False, "it was never called"),
        ("plans", True, ""),
    ]


# --- sinks that fail ---


class Failing(Sink):
    """Fails on the second event."""

    heard = 0
    finished = False

    def __call__(self, event: events.Event) -> None:
        self.heard += 1
        if self.heard == 2:
            raise ValueError("no room")

    def finish(self) -> None:
        self.finished = True


def test_a_sink_that_raises_is_named_once_and_the_others_hear_on() -> None:
    failing, stats = Failing(), StatsSink()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with listening_to([failing, stats]):
            happen()
    (warning,) = told
    assert "Failing failed on PassRun (ValueError: no room); it is switched off" in str(
        warning.message
    )
    assert (failing.heard, failing.finished) == (2, False)
    assert stats.summary()["programs_compiled"] == 1
    assert not events.listening()


def test_an_interrupt_in_a_sink_is_no_failure_of_it() -> None:
    class Interrupted(Sink):
        def __call__(self, event: events.Event) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening_to([Interrupted()]):
        happen()
    assert not events.listening()


def test_a_sink_that_cannot_finish_is_named() -> None:
    class Unfinished(Sink):
        def __call__(self, event: events.Event) -> None: ...

        def finish(self) -> None:
            raise OSError("disk full")

    said = r"Unfinished failed on the end \(OSError: disk full"
    with pytest.warns(RuntimeWarning, match=said), listening_to([Unfinished()]):
        happen()
