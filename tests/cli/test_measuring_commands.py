"""``ptir bench`` and ``ptir report``: numbers, pages."""

from __future__ import annotations

import json
import re
import resource
import sys
from pathlib import Path

import pytest

import ptir
from ptir import events
from ptir.capture.plan import plan_for
from ptir.cli import bandwidth
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
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for row in value["rows"]:
        assert set(row) == {
            "test",
            "tokens_per_second",
            "bandwidth_share",
            "weight_bytes_per_token",
            "peak_memory_bytes",
            "peak_resident_bytes",
        }
        if sys.platform == "linux":  # the probe, which is there by then, is not counted
            assert 20 << 20 < row["peak_resident_bytes"] < peak - bandwidth.host_probe().nbytes // 2
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


WHOLE = {
    "random:resnet-tiny": ("images_per_second", ["img1", "img2"], [1, 2], ()),
    "random:bert-tiny": ("tokens_per_second", ["txt1x9", "txt2x9"], [9, 18], ("-p", 9)),
    "random:bert-tiny-tagger": ("tokens_per_second", ["txt1x5", "txt2x5"], [5, 10], ("-p", 5)),
}


@pytest.mark.slice(1)
@pytest.mark.parametrize("spec", WHOLE)
def test_images_and_texts_are_measured_in_batches(spec: str, command: Command) -> None:
    key, names, counts, more = WHOLE[spec]
    given = ("--batch", 1, "--batch", 2, "--batch", 1, "-r", 3, "--json", *more)
    value = command("bench", spec, *given).value
    assert value["probe"] is None and value["estimated_tokens_per_second"] is None
    assert [row["test"] for row in value["rows"]] == names
    for row, count in zip(value["rows"], counts, strict=True):
        assert len(row[key]["samples"]) == 3
        assert row["seconds"] == pytest.approx(count / row[key]["median"])
        assert row["flops_share"] > 0
    one, two = value["rows"]
    assert (one["rows"], two["rows"]) == (1, 2)
    assert two["flops"] == pytest.approx(2 * one["flops"], rel=0.01)  # of what it ran, not of one


def test_the_operations_of_a_measured_run_are_those_of_its_layers(command: Command) -> None:
    (row,) = command("bench", "random:bert-tiny", "--batch", 3, "-p", 7, "-r", 1, "--json").value[
        "rows"
    ]
    size, inner, layers, tokens, context = 24, 50, 2, 3 * 7, 7
    products = layers * 2 * tokens * (4 * size * size + 2 * size * inner + 2 * size * context)
    assert products < row["flops"] < 1.3 * products


def test_a_table_of_images_tells_milliseconds(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "bench.html"
    lines = command("bench", "random:resnet-tiny", "--batch", 2, "-r", 1, "--html", out).out
    titles, cells = (line.split() for line in lines.splitlines()[:2])
    assert titles[4:] == ["images/s", "spread", "ms", "of", "peak"]
    assert cells[3] == "img2" and float(cells[8]) == pytest.approx(2000 / float(cells[4]), rel=0.02)
    held = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"), re.DOTALL)
    assert held is not None
    drawn, told = (section["data"] for section in json.loads(held[1])["sections"])
    assert drawn["unit"] == "images/s" and told["rows"][0][0] == "img2"


REFUSED = {
    "a prompt for images": (("random:resnet-tiny", "-p", 3), "-p is for models that generate or"),
    "decoding for an encoder": (("random:bert-tiny", "-n", 3), "-n is for models that generate or"),
    "a batch of generations": (("demo", "--batch", 3), "--batch is for models that see images or"),
    "a draft for images": (
        ("random:resnet-tiny", "--draft", "demo"),
        "--draft is for models that generate; leave it out",
    ),
    "a text that is too long": (("random:bert-tiny", "-p", 99), "takes texts of 1 to 66 tokens"),
}


@pytest.mark.slice(2)
@pytest.mark.parametrize("case", REFUSED)
def test_bench_refuses_what_a_model_has_no_use_for(case: str, command: Command) -> None:
    arguments, message = REFUSED[case]
    done = command("bench", *arguments)
    assert done.code == 2 and message in done.err


@pytest.mark.slice(2)
@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        (
            ("random:bert-tiny", "--prefill", 9, "--batch", 2),
            "a run over texts of 18 tokens together",
        ),
        (("random:whisper-micro", "--encoder"), "a run over 1 window of speech"),
        (("random:whisper-micro", "--position", 8), "a decode step at position 8"),
        (("random:whisper-micro", "--prefill", 8), "a prompt of 8 tokens"),
        (("random:resnet-tiny", "--batch", 2), "a run over 2 images"),
    ],
)
def test_every_kind_of_model_has_a_page(
    arguments: tuple[object, ...], title: str, command: Command, tmp_path: Path
) -> None:
    done = command("report", *arguments, "-r", 1, "--out", tmp_path / "report.html", "--json")
    assert done.value["title"] == f"{arguments[0]}: {title}"
