"""Dumped programs for ``ptir report``: run again, with what the dump tells of their past."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ptir.cli.common import CommonOptions, open_target
from ptir.errors import CheckpointError

if TYPE_CHECKING:
    from ptir.report import Section
    from ptir.trace.profile import ProgramProfile

NAME: Final = "dumped"


def longest(dump: Path) -> Path:
    """The folder of the program that ran longest in a dump; a program's own folder is that."""
    from ptir.trace.dumped import PROGRAM

    if (dump / PROGRAM).exists():
        return dump
    seconds: dict[str, float] = {}
    began: dict[int, str] = {}
    for line in _lines(dump / "executions.jsonl"):
        if line["event"] == "begin":
            began[line["run"]] = line["program"]
        elif line["event"] == "end" and line["run"] in began:
            name = began[line["run"]]
            seconds[name] = seconds.get(name, 0.0) + line["seconds"]
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
    from ptir.ir.program import Port, Program
    from ptir.passes.timing import sample_inputs
    from ptir.trace import ProfileSink, listening_to, read_dump

    found = read_dump(folder)
    program, backend = found.program, str(found.meta.get("backend") or "")
    target = open_target(common) if common.backend or not backend else registry.get(backend)
    plain = Program(program.main, tuple(Port(port.name) for port in program.ports))
    plan = plan_for(plain, target, name=str(found.meta.get("name") or NAME))
    given = "arrays of its first run"
    arrays = dict(found.arrays)
    if not arrays and program.ports:
        given = "sample arrays, since --dump-inputs kept none"
        samples = sample_inputs(program.inputs)
        arrays = dict(zip((p.name for p in program.ports), samples, strict=True))
    handles = [target.backend.upload(arrays[p.name], target.device) for p in program.ports]
    plan.run(handles, ())
    sink = ProfileSink()
    with listening_to([sink]), events.timing_parts():
        for _ in range(repetitions):
            plan.run(handles, ())
    return sink.programs()[0], [("ran again on", given), ("weights", "given as inputs")]


def dump_sections(folder: Path) -> list[Section]:
    """Tables of what the dump tells: passes over the program, its runs, look-ups that missed."""
    from ptir.report import table

    root = folder.parent
    passes = [
        [p["number"], p["pass"], round(p["seconds"] * 1e3, 3), sum(p["rewrites"].values())]
        for p in _lines(root / "passes.jsonl")
        if p["program"] == folder.name
    ]
    begun = {
        one["run"]: one["at"]
        for one in _lines(root / "executions.jsonl")
        if one.get("program") == folder.name
    }
    runs = [
        [one["run"], round(begun[one["run"]], 4), one["event"], _milliseconds(one)]
        for one in _lines(root / "executions.jsonl")
        if one["event"] != "begin" and one["run"] in begun
    ]
    misses = [
        [one["cache"], one["key"], one["reason"]]
        for one in _lines(root / "caches.jsonl")
        if not one["hit"]
    ]
    return [
        table("Passes", ("number", "pass", "ms", "rewrites"), passes, "When it was dumped."),
        table("Runs", ("run", "began (s)", "ended", "ms"), runs, "When it was dumped."),
        table("Missed", ("cache", "key", "why"), misses, "Look-ups in the whole dump that missed."),
    ]


def _milliseconds(line: Mapping[str, Any]) -> float | None:
    return round(line["seconds"] * 1e3, 4) if "seconds" in line else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a list, none where there is none; raises ``CheckpointError``."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            yield dict(json.loads(line))
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{path}: line {number} is no record: {error}") from error
