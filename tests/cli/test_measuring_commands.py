"""``ptir bench`` and ``ptir report``: numbers, pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ptir
from ptir import events
from ptir.capture.plan import plan_for
from ptir.trace import DumpSink, listening_to
from running import (
    REF,
    Command,
    command,
)

pytestmark = pytest.mark.turns(2)

__all__ = ["command"]


def test_bench_reports_speeds_in_the_promised_shape(command: Command) -> None:
    options = ("--dtype", "f32")  # the reference would widen what the demo stores
    value = command("bench", "demo", "-p", 8, "-n", 2, "-r", 1, "--json", *options).value
    formats = {"dtype", "quant", "cache_dtype", "fast"}
    estimate = "estimated_tokens_per_second"
    assert set(value) == {"model", "backend", "device", "probe", estimate, "rows"} | formats
    assert (value["model"], value["backend"], value["dtype"], value["quant"]) == (
        "demo",
        "ref",
        "f32",
        None,
    )
    assert [row["test"] for row in value["rows"]] == ["pp8", "tg2"]
    for row in value["rows"]:
        assert set(row) == {
            "test",
            "tokens_per_second",
            "bandwidth_share",
            "weight_bytes_per_token",
            "peak_memory_bytes",
        }
        speed = row["tokens_per_second"]
        assert speed["samples"] == [speed["median"]] == [speed["min"]] == [speed["max"]]
        assert speed["median"] > 0
    prompt, decoding = value["rows"]
    assert prompt["bandwidth_share"] is None
    assert decoding["bandwidth_share"] > 0
    stored = ptir.load_model("demo", backend=REF, dtype="f32").store
    positions = stored.type("wpe.weight").nbytes
    everything = sum(stored.type(name).nbytes for name in stored.source.names())
    read = decoding["weight_bytes_per_token"]
    assert everything - positions < read <= everything - positions + 2 * 4 * 192
    assert "threads reading" in value["probe"]["kind"]
    assert value["probe"]["bytes_per_second"] > 0
    table = command("bench", "random:gpt2-tiny", "-p", 8, "-n", 0, "-r", 2).out
    assert "pp8" in table
    assert "bandwidth:" not in table
    assert "tg" not in table


def test_bench_writes_its_numbers_as_a_page_too(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "bench.html"
    given = ("bench", "demo", "-p", 4, "-n", 2, "-r", 2, "--backend", "ref", "--json")
    rows = command(*given, "--html", out).value["rows"]
    held = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"), re.DOTALL)
    assert held is not None
    drawn, told = (section["data"]["rows"] for section in json.loads(held[1])["sections"])
    wanted = {row["test"]: row["tokens_per_second"]["median"] for row in rows}
    assert {one["name"]: one["value"] for one in drawn} == wanted
    assert [row[:2] for row in told] == [[n, round(v, 2)] for n, v in wanted.items()]


def test_report_writes_a_page_of_a_step(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    given = ("report", "demo", "--position", 8, "-r", 1, "--backend", "ref", "--out", out)
    value = command(*given, "--json").value
    assert value["title"] == "demo: a decode step at position 8"
    held = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"), re.DOTALL)
    assert held is not None
    graph = json.loads(held[1])["sections"][0]["data"]
    assert {part["layer"] for part in graph["parts"]} >= {f"h.{n}" for n in range(6)}
    assert sum("attention" in part["computes"] for part in graph["parts"]) == 6
    done = command(*given, "--device-memory", "40MB")
    assert done.code == 4
    assert "its weights are streamed (--device-memory)" in done.err
    done = command(*given[:-1], tmp_path / "no" / "x.html")
    assert (done.code, "choose another file" in done.err) == (2, True)


def test_report_of_a_dump_runs_its_longest_program_and_tells_its_past(
    command: Command, tmp_path: Path
) -> None:
    folder, out = tmp_path / "dumps", tmp_path / "report.html"
    sink = DumpSink(folder)
    with listening_to([sink]):
        for name, size in (("small", 2), ("large", 4)):
            program = ptir.capture(lambda x: x + 1.5, ptir.spec("f32", size))
            plan = plan_for(program, REF, name=name)
            events.emit(events.ProgramStarting(size, plan, "ref", "numpy", dict))
            events.emit(events.ProgramRun(plan.optimized, "ref", "numpy", size, (), size, plan))
    said = command("report", folder, "-r", 1, "--out", out, "--json").value
    assert said["title"].startswith("00001_large of dumps")
    assert said["facts"]["ran again on"] == "sample arrays, since --dump-inputs kept none"
    held = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"), re.DOTALL)
    assert held is not None
    tables = {s["title"]: s["data"] for s in json.loads(held[1])["sections"]}
    assert [row[2:] for row in tables["Runs"]["rows"]] == [["end", 4000.0]]
    assert len(tables["Passes"]["rows"]) > 5
    empty = tmp_path / "empty"
    DumpSink(empty)
    done = command("report", empty, "--out", out)
    assert (done.code, "no program ran in this dump" in done.err) == (1, True)


def test_bench_takes_and_reports_every_format(command: Command) -> None:
    options = ("--dtype", "bf16", "--cache-dtype", "f16")
    found = command("bench", "demo", "-p", "4", "-n", "2", "-r", "1", "--json", *options)
    report = json.loads(found.out)
    assert (report["dtype"], report["quant"], report["cache_dtype"]) == ("bf16", None, "f16")
    assert report["fast"] is False
