"""``ptir transcribe``: what it prints, and what it refuses."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ptir
from ptir.audio import wav_bytes
from ptir.cli.main import main
from running import REF

MICRO = "random:whisper-micro"
SOUND = wav_bytes(0.1 * np.random.default_rng(0).standard_normal((40000, 2)), 22050)


@pytest.fixture
def sound(tmp_path: Path) -> str:
    path = tmp_path / "a.wav"
    path.write_bytes(SOUND)
    return str(path)


def run(*arguments: str) -> int:
    return main(["transcribe", MICRO, *arguments, "--backend", "ref"])


def test_every_form_is_what_the_model_gives(sound: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ptir.load_model(MICRO, backend=REF).transcribe(SOUND, language="de")
    assert len(wanted.segments) > 1
    outputs = {}
    for form in ((), ("--timestamps",), ("--srt",), ("--vtt",), ("--json",)):
        assert run(sound, "--language", "german", *form) == 0
        outputs[form] = capsys.readouterr()
    assert outputs[()].out == wanted.text + "\n"
    assert outputs[("--srt",)].out == wanted.srt()
    assert outputs[("--vtt",)].out == wanted.vtt()
    lines = outputs[("--timestamps",)].out.splitlines()
    assert len(lines) == len(wanted.segments)
    assert re.match(r"\[00:0\d\.\d{3} --> 00:0\d\.\d{3}\] ", lines[0])
    (row,) = json.loads(outputs[("--json",)].out)["files"]
    assert (row["file"], row["language"], row["text"]) == (sound, "de", wanted.text)
    assert [one["end"] for one in row["segments"]] == [one.end for one in wanted.segments]
    assert "1 recording in " in outputs[()].err
    assert "x real time" in outputs[()].err


def test_stdin_is_a_recording_and_several_have_names(
    sound: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(SOUND)))
    assert run("-", sound, "--language", "en", "--task", "translate") == 0
    shown = capsys.readouterr().out
    first, second = shown.split(f"{sound}:\n")
    assert first.removeprefix("-:\n") == second


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("none.wav",), 1, "PTIR-304.*none.wav.*cannot be read"),
        ((__file__,), 4, r"is no WAV file.*ptir-core\[audio\]"),
        (("-", "-"), 2, "stdin can be read once"),
        (("a.wav", "b.wav", "--srt"), 2, "--srt is for one file"),
        (("a.wav", "--vtt", "--json"), 2, "give --vtt or --json"),
        (("a.wav", "--language", "xx"), 2, "unknown language 'xx'"),
        ((), 2, "Missing argument 'FILES"),
    ],
)
def test_what_cannot_be_transcribed(
    arguments: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == code
    found = capsys.readouterr()
    assert re.search(words, found.err, re.DOTALL)
    assert found.out == ""


def test_other_models_are_refused(sound: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "demo", sound, "--backend", "ref"]) == 4
    assert "cannot transcribe; it can generate" in capsys.readouterr().err
