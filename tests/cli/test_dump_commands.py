"""Programs and what ran: dumps, profiles, programs that run alone, forward."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.capture.plan import PLANS
from ptir.checkpoint import load_archive, save_archive
from ptir.errors import BackendUnavailable, UsageError
from ptir.ir.jsonform import to_json
from ptir.ops.reading import from_json
from ptir.ops.verify import verify
from ptir.passes import pipeline
from ptir.trace import DumpSink, listening_to
from running import (
    GREEDY,
    REF,
    ROMEO,
    Command,
    assert_close,
    command,
    model,
)

pytestmark = pytest.mark.turns(2)

__all__ = ["command"]


def test_dumped_programs_load_again(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    PLANS.clear()
    assert command(*GREEDY, "-n", 2, "--dump-dir", folder, "--dump-mode", "compile").code == 0
    found = sorted(folder.glob("*/*.ptir"))
    assert {path.stem for path in found} == {"program", "optimized"}
    assert [path.name for path in sorted(folder.glob("0*"))][:1] == ["00000_extend"]
    assert len(found) >= 6
    places: set[tuple[str, str]] = set()
    for path in found:
        program = ptir.parse(path.read_text(encoding="utf-8"))
        verify(program)
        text = path.read_text(encoding="utf-8").removesuffix("\n")
        assert str(program) == re.sub(r" loc\(.*\)$", "", text, flags=re.MULTILINE)
        places |= {(i.location.scope, i.location.functional) for i in program.main.instructions}
    assert ("h.3.mlp.c_fc", "linear") in places


def test_a_dumped_step_runs_alone_on_what_its_first_run_read(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "dumps"
    PLANS.clear()
    files = tmp_path / "whole", tmp_path / "alone"
    dumping = "--dump-dir", folder, "--dump-inputs"
    assert command("forward", "demo", "ROMEO:", "--out", files[0], *dumping).code == 0
    (step,) = folder.glob("0*_all_logits")
    assert command("forward", step, "--out", files[1]).code == 0
    whole, alone = (next(iter(load_archive(file).arrays.values())) for file in files)
    # Weights are inputs there, so that nothing is computed of them ahead: sums differ in order.
    assert_close(alone.reshape(-1, whole.shape[-1])[: len(whole)], whole)
    stored = {path.name for path in (folder / "parameters").iterdir()}
    assert len(stored) == 76  # those of the model, each once

    meta = json.loads((step / "meta.json").read_text())
    (step / "meta.json").write_text(json.dumps(meta | {"kind": "ptir dump 9"}))
    done = command("forward", step)
    assert (done.code, done.out) == (1, "")
    assert "is of 'ptir dump 9' and this ptir reads and writes 'ptir dump 1'" in done.err
    done = command("forward", folder)
    assert "name one of its programs: 00000_" in done.err


def test_a_profile_prints_layers_functionals_and_kernels_and_writes_a_timeline(
    command: Command, tmp_path: Path
) -> None:
    PLANS.clear()
    out = tmp_path / "timeline.json"
    done = command(*GREEDY, "-n", 3, "--profile", "--profile-out", out, "--backend", "ref")
    tables = done.err.split("\n\n")
    titles = [table.splitlines()[0].split("  ")[0] for table in tables]
    assert titles[:4] == ["by layer", "by functional", "by kernel", "program"]
    rows = [table.splitlines()[1:] for table in tables]
    assert {"h.0", "h.5"} <= {row.split()[0] for row in rows[0]}
    assert any(re.match(r"linear \(\w+\) +\d+ +\d.* +\d+%$", row) for row in rows[1])
    assert any(row.startswith("_advance  2 ") for row in rows[3])
    assert "cache plans" in done.err
    assert "roofs, measured: memory " in done.err
    names = {one["name"] for one in json.loads(out.read_text())["traceEvents"]}
    assert {"run _advance", "compile _extend", "attention", "load wte.weight"} <= names


def test_forward_of_a_dump_without_arrays_says_how_to_keep_them(
    command: Command, tmp_path: Path
) -> None:
    PLANS.clear()
    assert command("forward", dumped(tmp_path, ".ptir"), "--dump-dir", tmp_path / "d").code == 2
    sink = DumpSink(tmp_path / "dumps")
    program = ptir.capture(lambda x: x + 1.0, ptir.spec("f32", 2))
    with listening_to([sink]):
        ptir.run_program(program, {"x": np.ones(2, np.float32)}, REF)
    done = command("forward", tmp_path / "dumps" / "00000_program")
    assert (done.code, done.out) == (2, "")
    assert "keeps no arrays: dump again with --dump-inputs, or give them with --input" in done.err
    done = command("forward", "demo", "A", "--dump-inputs")
    assert (done.code, "give --dump-dir, which says where" in done.err) == (2, True)


def test_forward_describes_and_writes_logits(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "logits.safetensors"
    value = command("forward", "demo", "ROMEO:", "--json", "--out", out).value
    logits = value["outputs"]["logits"]
    assert (value["token_ids"], logits["shape"], logits["dtype"]) == (
        ROMEO["prompt_ids"],
        [2, 1024],
        "float32",
    )
    archive = load_archive(out)
    assert np.array_equal(archive.arrays["logits"], model(dtype="auto").forward("ROMEO:"))
    assert archive.metadata["token_ids"] == "859,26"
    by_ids = command("forward", "demo", "--tokens", "859,26", "--json").value
    assert by_ids["outputs"]["logits"]["digest"] == logits["digest"]
    other = command("forward", "demo", "--tokens", "859,27", "--json").value
    assert other["outputs"]["logits"]["digest"] != logits["digest"]
    assert logits["digest"] in command("forward", "demo", "ROMEO:").out


@pytest.mark.parametrize("optimized", [False, True])
def test_dump_of_a_step_parses_verifies_and_reloads(optimized: bool, command: Command) -> None:
    arguments = ("dump", "demo", "--length", 2, *(["--optimized"] if optimized else []))
    text = command(*arguments)
    assert (text.code, text.err) == (0, "")
    program = ptir.parse(text.out)
    verify(program)
    assert str(program) + "\n" == text.out
    assert from_json(command(*arguments, "--json").value) == program
    for form in ((), ("--json",)):
        found = command(*arguments, "--locations", *form)
        again = from_json(found.value) if form else ptir.parse(found.out)
        assert again == program
        places = {(i.location.scope, i.location.functional) for i in again.main.instructions}
        assert ("h.3.mlp.c_fc", "linear") in places
    assert " loc(" not in text.out


def test_dumped_step_computes_the_logits(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "step.ptir"
    assert command("dump", "demo", "--length", 3, "--out", out).out == ""
    program = ptir.parse(out.read_text(encoding="utf-8"))
    source = model().store.source
    ports = zip(program.ports, program.inputs, strict=True)
    types = {port.name: type_ for port, type_ in ports}
    assert types["wte.weight"].dtype.name == "f16"  # as the demo is stored
    inputs: dict[str, Any] = {
        name: source.read(name).astype(types[name].dtype.numpy) for name in source.names()
    }
    inputs |= {
        port.name: np.zeros(type_.shape, np.float32)
        for port, type_ in zip(program.ports, program.inputs, strict=True)
        if port.name.startswith(("keys", "values"))
    }
    inputs |= {
        "tokens": np.array([[859, 26, 0]], np.int32),
        "start": np.array([0], np.int32),
        "count": np.array([2], np.int32),
    }
    logits = ptir.run_program(program, inputs, REF)[0]
    assert_close(logits, model().forward("ROMEO:")[-1:])
    with pytest.raises(UsageError, match="no array for port 'count'"):
        ptir.run_program(program, {n: v for n, v in inputs.items() if n != "count"}, REF)


def dumped(tmp_path: Path, suffix: str) -> Path:
    """A program as a file, whose second output tells operands and axes apart."""
    program = ptir.capture(
        lambda x, w: (x @ w, x - 1.0), ptir.spec("f32", 2, 3), ptir.spec("f32", 3, 4)
    )
    path = tmp_path / f"program{suffix}"
    json_text = json.dumps(to_json(program))
    path.write_text(json_text if suffix == ".json" else f"{program}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".ptir", ".json"])
def test_forward_runs_a_dumped_program(suffix: str, command: Command, tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    first, second, out = (tmp_path / name for name in ("first", "second", "out"))
    save_archive(first, {"x": x * 0, "w": w, "unused": w})
    save_archive(second, {"x": x})
    program = dumped(tmp_path, suffix)
    arguments = ("forward", program, "--input", first, "--input", second)
    outputs = command(*arguments, "--out", out, "--json").value["outputs"]
    assert {name: row["shape"] for name, row in outputs.items()} == {
        "output0": [2, 4],
        "output1": [2, 3],
    }
    arrays = load_archive(out).arrays
    assert np.array_equal(arrays["output0"], x @ w)
    assert np.array_equal(arrays["output1"], x - 1)
    assert outputs["output1"]["digest"] in command(*arguments).out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["PROGRAM"],
            2,
            "no array for port 'x' (f32[2,3]); the program takes x, w, given: nothing",
        ),
        (["PROGRAM", "text"], 2, "a program takes no text; give its arrays with --input"),
        (["PROGRAM", "--tokens", "1"], 2, "a program takes no text"),
        (["demo", "text", "--input", "x"], 2, "--input is for programs (.ptir)"),
        (["PROGRAM", "--input", "nowhere"], 1, "nowhere: cannot be read: No such file"),
        (["missing.ptir"], 1, "missing.ptir: cannot be read: No such file"),
        (["missing.json"], 1, "missing.json: cannot be read: No such file"),
        (["BROKEN"], 5, "error [PTIR-103]"),
        (["ILL"], 5, "contracting dims differ: 3 vs 5"),
    ],
)
def test_forward_of_a_program_says_what_is_wrong(
    arguments: list[str], code: int, words: str, command: Command, tmp_path: Path
) -> None:
    program = dumped(tmp_path, ".ptir")
    text = program.read_text(encoding="utf-8")
    broken, ill = tmp_path / "broken.ptir", tmp_path / "ill.ptir"
    broken.write_text(text[:-20], encoding="utf-8")
    ill.write_text(text.replace("f32[3,4]", "f32[5,4]"), encoding="utf-8")
    files = {"PROGRAM": program, "BROKEN": broken, "ILL": ill}
    done = command("forward", *(files.get(a, a) for a in arguments))
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_a_program_runs_where_its_name_says(command: Command) -> None:
    program = ptir.capture(lambda x: x + 1.0, ptir.spec("f32", 2))
    for backend in ("ref", "ref:0", REF, None):
        (found,) = ptir.run_program(program, {"x": [1.0, 2.0]}, backend)
        assert found.tolist() == [2, 3]
    assert ptir.run_program(program, {"x": ptir.tensor([1.0, 2.0])})[0].tolist() == [2, 3]
    with pytest.raises(BackendUnavailable, match=r"unknown backend 'reff' .nearest: ref"):
        ptir.run_program(program, {"x": [1.0, 2.0]}, "reff")
    with pytest.raises(UsageError, match=r"port 'x' takes f32\[2\], given i32\[2\]"):
        ptir.run_program(program, {"x": [1, 2]}, "ref")


def test_every_pass_over_the_demo_is_verified_when_asked(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    check = pipeline.verify
    monkeypatch.setattr(pipeline, "verify", lambda p: (seen.append(p.digest), check(p))[1])
    PLANS.clear()
    assert command(*GREEDY, "-n", 4, "--json").value["token_ids"] == ROMEO["greedy_ids"][:4]
    assert not seen
    PLANS.clear()
    monkeypatch.setenv("PTIR_VERIFY", "1")
    for policy in ([], ["--override", "attention=force=online"]):
        assert command(*GREEDY, "-n", 4, *policy, "--json").value["text"]
    sampled = ("--temp", "0.8", "--top-k", 5, "--repetition-penalty", 1.2, "--json")
    assert command("run", "demo", "ROMEO:", "-n", 3, *sampled).value["token_ids"]
    assert len(seen) >= 6 * sum(stage.run is not None for stage in pipeline.PIPELINE)
    broken = replace(pipeline.PIPELINE[0], run=lambda p, c: replace(p, version=(9, 0)))
    monkeypatch.setattr(pipeline.optimize, "__defaults__", ((broken,),))
    PLANS.clear()
    done = command(*GREEDY, "-n", 1)
    assert done.code == 5 and "pass 'canonicalize' broke the program" in done.err
    PLANS.clear()
