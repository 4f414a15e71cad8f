"""Programs of a dump run again as they ran; what is damaged is named before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ptir
from ptir import events
from ptir import functional as F
from ptir.capture.plan import PLANS
from ptir.checkpoint import save_archive
from ptir.cli import roofs
from ptir.errors import UnsupportedError
from ptir.trace import DumpSink, listening_to
from ptir.trace.profile import Roofs
from running import Command, command

__all__ = ["command"]


def _twice(x: ptir.Tensor) -> ptir.Tensor:
    return x + x


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump of one program of one input f32[3], which ran."""
    PLANS.clear()
    folder = tmp_path / "dump"
    with listening_to([DumpSink(folder, inputs=True)]):
        ptir.jit(_twice)(ptir.tensor(np.ones(3, np.float32), backend="ref")).numpy()
    return folder


@pytest.fixture(autouse=True)
def known_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roofs, which take seconds to measure and are no matter here."""
    monkeypatch.setattr(roofs, "roofs_of", lambda target: Roofs(1e9, 1e9))


PROGRAM = "00000_twice"


@pytest.mark.parametrize("name", ["executions", "passes", "caches"])
@pytest.mark.parametrize("line", [b"{}", b"[]", b"3", b'{"event": "begin", "run": 9}'])
def test_line_that_is_no_record_of_a_list_is_named(
    command: Command, dump: Path, name: str, line: bytes
) -> None:
    path = dump / f"{name}.jsonl"
    count = len(path.read_bytes().splitlines()) + 1
    path.write_bytes(path.read_bytes() + line + b"\n")
    done = command("report", dump, "--out", dump / "page.html")
    assert (done.code, f"{path}: line {count} is no record" in done.err) == (1, True), done.err


def test_list_that_is_no_text_is_named(command: Command, dump: Path) -> None:
    path = dump / "executions.jsonl"
    path.write_bytes(path.read_bytes() + b"\xff\xfe")
    done = command("report", dump, "--out", dump / "page.html")
    assert (done.code, f"{path}: is not UTF-8 text" in done.err) == (1, True), done.err


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("x0", np.ones(2, np.float32), "port 'x0' takes f32[3], given f32[2]"),
        ("x0", np.ones(3, np.int32), "port 'x0' takes f32[3], given i32[3]"),
        ("y", np.ones(3, np.float32), "no array for port 'x0' (f32[3])"),
    ],
)
def test_arrays_that_the_program_does_not_take_never_reach_a_kernel(
    command: Command, dump: Path, name: str, array: np.ndarray, said: str
) -> None:
    save_archive(dump / PROGRAM / "inputs.safetensors", {name: array})
    ran: list[events.Event] = []
    remove = events.subscribe(lambda e: ran.append(e) if isinstance(e, events.ProgramRun) else None)
    try:
        done = command("report", dump, "--out", dump / "page.html")
    finally:
        remove()
    assert (done.code, said in done.err, ran) == (2, True, []), done.err


@pytest.mark.parametrize("name", ["report", "forward"])
def test_damaged_meta_of_a_program_is_named(command: Command, dump: Path, name: str) -> None:
    path = dump / PROGRAM / "meta.json"
    path.write_text("[1,")
    done = command(name, dump / PROGRAM)
    assert (done.code, f"{path} is not valid JSON" in done.err) == (1, True), done.err


def test_program_is_read_from_within_its_folder(
    command: Command, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = dump / "parameters"
    parameters.mkdir()
    (dump / PROGRAM / "inputs.safetensors").rename(parameters / "00000.safetensors")
    save_archive(dump / PROGRAM / "inputs.safetensors", {})
    meta = json.loads((dump / PROGRAM / "meta.json").read_text())
    meta["parameters"] = {"x0": "parameters/00000.safetensors"}
    (dump / PROGRAM / "meta.json").write_text(json.dumps(meta))
    monkeypatch.chdir(dump / PROGRAM)
    page = dump / "page.html"
    assert command("report", ".", "--out", page, "-r", 1).out == f"{page}: {PROGRAM} of dump\n"
    assert command("forward", ".", "--backend", "ref").code == 0


def _chosen(command: Command, *arguments: object) -> list[str]:
    """What is chosen for softmax where a command compiles."""
    PLANS.clear()
    heard: list[str] = []

    def hear(event: object) -> None:
        if isinstance(event, events.ImplementationChosen):
            heard.append(event.implementation)

    remove = events.subscribe(hear)
    try:
        done = command(*arguments)
    finally:
        remove()
    assert done.code == 0, done.err
    return heard


def test_program_runs_again_under_the_overrides_of_its_run(
    command: Command, tmp_path: Path
) -> None:
    PLANS.clear()
    dump, page = tmp_path / "dump", ("--out", tmp_path / "page.html", "-r", 1)
    with (
        listening_to([DumpSink(dump, inputs=True)]),
        ptir.overrides({"softmax": "default", "softmax[N=64]": "force=split"}),
    ):
        ptir.jit(F.softmax)(ptir.tensor(np.ones((2, 64), np.float32), backend="ref")).numpy()
    (folder,) = dump.glob("0*")
    stronger = ("--override", "softmax[N=64]=force=online")
    assert _chosen(command, "forward", folder, "--backend", "ref") == ["split"]
    assert _chosen(command, "report", folder, *page) == ["split"]
    assert "softmax[N=64]=force=split" in (tmp_path / "page.html").read_text()
    assert _chosen(command, "report", folder, *page, *stronger) == ["online"]
    meta = folder / "meta.json"
    meta.write_text(meta.read_text().replace("force=split", "force=elsewhere"))
    done = command("report", folder, *page)
    assert done.code == 2 and f"override given by {meta}" in done.err and "elsewhere" in done.err


def test_compilation_that_failed_keeps_the_overrides_that_made_it_fail(tmp_path: Path) -> None:
    PLANS.clear()
    with (
        pytest.raises(UnsupportedError, match="force=rows"),
        listening_to([DumpSink(tmp_path)]),
        ptir.overrides({"linear": "force=rows"}),
    ):
        x = ptir.tensor(np.ones((2, 2), np.float32), backend="ref")
        ptir.jit(F.linear)(x, x).numpy()
    (meta,) = tmp_path.glob("0*/meta.json")
    assert json.loads(meta.read_text())["overrides"] == {"linear": "force=rows"}
