"""Dumped programs for ``ptir report``: run again, with what the dump tells of their past."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ptir.checkpoint.json_text import read_text
from ptir.cli.common import CommonOptions, open_target
from ptir.errors import CheckpointError

if TYPE_CHECKING:
    from ptir.report import Section
    from ptir.trace.profile import ProgramProfile

NAME: Final = "dumped"
Row = TypeVar("Row")


def longest(dump: Path) -> Path:
    """The folder of the program that ran longest in a dump; a program's own folder is that."""
    from ptir.trace.dumped import PROGRAM

    if (dump / PROGRAM).exists():
        return dump
    seconds: dict[str, float] = {}
    began: dict[int, str] = {}

    def take(line: Mapping[str, Any]) -> None:
        if line["event"] == "begin":
            began[line["run"]] = line["program"]
        elif line["event"] == "end" and line["run"] in began:
            name = began[line["run"]]
            seconds[name] = seconds.get(name, 0.0) + line["seconds"]

    _rows(dump / "executions.jsonl", take)
    if not seconds:
        raise CheckpointError(f"{dump}: no program ran in this dump; name a program's folder in it")
    return dump / max(seconds, key=lambda name: seconds[name])


def profile_dump(
    common: CommonOptions, folder: Path, repetitions: int
) -> tuple[ProgramProfile, list[tuple[str, str]]]:
    """The program, run again part by part on what was kept, or on sample arrays."""
    from ptir import events
    from ptir.backend import registry
    from ptir.capture.plan import plan_for
    from ptir.capture.run import checked_arrays
    from ptir.ir.program import Port, Program
    from ptir.ops.overriding import active_overrides, in_force
    from ptir.passes.timing import sample_inputs
    from ptir.trace import ProfileSink, listening_to, read_dump

    found = read_dump(folder)
    program, backend = found.program, str(found.meta.get("backend") or "")
    target = open_target(common) if common.backend or not backend else registry.get(backend)
    plain = Program(program.main, tuple(Port(port.name) for port in program.ports))
    with in_force(found.overrides):
        asked = active_overrides()
        plan = plan_for(plain, target, name=str(found.meta.get("name") or NAME))
    given = "arrays of its first run"
    arrays = dict(found.arrays)
    if not arrays and program.ports:
        given = "sample arrays, since --dump-inputs kept none"
        samples = sample_inputs(program.inputs)
        arrays = dict(zip((p.name for p in program.ports), samples, strict=True))
    arrays = checked_arrays(program, arrays)
    handles = [target.backend.upload(arrays[p.name], target.device) for p in program.ports]
    plan.run(handles, ())
    sink = ProfileSink()
    with listening_to([sink]), events.timing_parts():
        for _ in range(repetitions):
            plan.run(handles, ())
    facts = [("ran again on", given), ("weights", "given as inputs")]
    facts += [("overrides", "; ".join(map(str, asked)))] if asked else []
    return sink.programs()[0], facts


def dump_sections(folder: Path) -> list[Section]:
    """Tables of what the dump tells: passes over the program, its runs, look-ups that missed."""
    from ptir.report import table

    root = folder.parent
    begun: dict[int, float] = {}

    def passed(line: Mapping[str, Any]) -> list[Any] | None:
        if line["program"] != folder.name:
            return None
        milliseconds = round(line["seconds"] * 1e3, 3)
        return [line["number"], line["pass"], milliseconds, sum(line["rewrites"].values())]

    def ran(line: Mapping[str, Any]) -> list[Any] | None:
        run = line["run"]
        if line["event"] == "begin":
            if line["program"] == folder.name:
                begun[run] = line["at"]
            return None
        if run not in begun:
            return None
        return [run, round(begun[run], 4), line["event"], _milliseconds(line)]

    def missed(line: Mapping[str, Any]) -> list[Any] | None:
        return None if line["hit"] else [line["cache"], line["key"], line["reason"]]

    passes = _rows(root / "passes.jsonl", passed)
    runs = _rows(root / "executions.jsonl", ran)
    misses = _rows(root / "caches.jsonl", missed)
    return [
        table("Passes", ("number", "pass", "ms", "rewrites"), passes, "When it was dumped."),
        table("Runs", ("run", "began (s)", "ended", "ms"), runs, "When it was dumped."),
        table("Missed", ("cache", "key", "why"), misses, "Look-ups in the whole dump that missed."),
    ]


def _milliseconds(line: Mapping[str, Any]) -> float | None:
    return round(line["seconds"] * 1e3, 4) if "seconds" in line else None


def _rows(path: Path, row: Callable[[Mapping[str, Any]], Row | None]) -> list[Row]:
    """What ``row`` makes of each record of a list that is not None; none where there is no list.

    Raises ``CheckpointError`` for a line that is no such record.
    """
    if not path.exists():
        return []
    made: list[Row] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            found = row(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            said = f"{path}: line {number} is no record ({type(error).__name__}: {error})"
            raise CheckpointError(f"{said}; dump again, into a new folder") from error
        if found is not None:
            made.append(found)
    return made
