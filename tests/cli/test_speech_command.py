"""``ptir transcribe``: what it prints, and what it refuses."""

from __future__ import annotations

import io
import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.audio import wav_bytes
from ptir.cli.main import main
from running import REF

MICRO = "random:whisper-micro"
SOUND = wav_bytes(0.1 * np.random.default_rng(0).standard_normal((26000, 2)), 22050)


@pytest.fixture
def sound(tmp_path: Path) -> str:
    path = tmp_path / "a.wav"
    path.write_bytes(SOUND)
    return str(path)


def run(*arguments: str) -> int:
    return main(["transcribe", MICRO, *arguments, "--backend", "ref"])


def test_every_form_is_what_the_model_gives(sound: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ptir.load_model(MICRO, backend=REF).transcribe(SOUND, language="de", temperature=0)
    assert len(wanted.segments) > 1
    outputs = {}
    for form in ((), ("--timestamps",), ("--srt",), ("--vtt",), ("--json",)):
        assert run(sound, "--language", "german", "--temperature", "0", *form) == 0
        outputs[form] = capsys.readouterr()
    assert outputs[()].out == wanted.text + "\n"
    assert outputs[("--srt",)].out == wanted.srt()
    assert outputs[("--vtt",)].out == wanted.vtt()
    lines = outputs[("--timestamps",)].out.splitlines()
    assert len(lines) == len(wanted.segments)
    assert re.match(r"\[00:0\d\.\d{3} --> 00:0\d\.\d{3}\] ", lines[0])
    (row,) = json.loads(outputs[("--json",)].out)["files"]
    assert (row["file"], row["language"], row["text"]) == (sound, "de", wanted.text)
    assert row["segments"] == json.loads(json.dumps([asdict(one) for one in wanted.segments]))
    assert {"avg_logprob", "compression_ratio", "no_speech_prob", "temperature"} <= {
        *row["segments"][0]
    }
    assert "1 recording in " in outputs[()].err
    assert "x real time" in outputs[()].err


def test_stdin_is_a_recording_and_several_have_names(
    sound: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(SOUND)))
    options = ("--language", "en", "--task", "translate", "--temperature", "0")
    assert run("-", sound, *options, "--batch", "2") == 0
    shown = capsys.readouterr().out
    first, second = shown.split(f"{sound}:\n")
    assert first.removeprefix("-:\n") == second


def test_words_have_lines_of_their_own(sound: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"language": "en", "temperature": 0, "word_timestamps": True}
    found = ptir.load_model(MICRO, backend=REF).transcribe(SOUND, **options)
    words = [word for one in found.segments for word in one.words]
    given = (sound, "--language", "en", "--temperature", "0", "--word-timestamps")
    assert run(*given, "--timestamps") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(words) > 2
    assert lines[0].startswith(f"[00:0{words[0].start:.3f} --> 00:0{words[0].end:.3f}] ")
    assert run(*given) == 0
    assert capsys.readouterr().out == found.text + "\n"


OPTIONS: dict[str, dict[str, Any]] = {
    "--temperature 0.9 --seed 0": {"temperature": 0.9},
    "--temperature 0,0.5 --logprob-threshold -9 --compression-ratio-threshold none": {
        "temperature": (0, 0.5),
        "logprob_threshold": -9,
        "compression_ratio_threshold": None,
    },
    "--temperature 0,0.3 --compression-ratio-threshold 0.1 --logprob-threshold none": {
        "temperature": (0, 0.3),
        "compression_ratio_threshold": 0.1,
        "logprob_threshold": None,
    },
    "--temperature 0 --no-speech-threshold 0": {"temperature": 0, "no_speech_threshold": 0},
    "--temperature 0 --beams 2": {"temperature": 0, "beams": 2},
    "--temperature 0 --prompt 'a cat'": {"temperature": 0, "prompt": "a cat"},
    "--temperature 0 --condition-on-previous-text": {
        "temperature": 0,
        "condition_on_previous_text": True,
    },
    "--temperature 0 --no-timestamps --batch 2": {"temperature": 0, "timestamps": False},
}


@pytest.mark.slice(2)
@pytest.mark.parametrize("arguments", OPTIONS)
def test_options_are_those_of_the_model(
    arguments: str, sound: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(sound, "--language", "en", "--json", *shlex.split(arguments)) == 0
    (row,) = json.loads(capsys.readouterr().out)["files"]
    wanted = ptir.load_model(MICRO, backend=REF).transcribe(
        SOUND, language="en", **OPTIONS[arguments]
    )
    shown = [(one["tokens"], one["start"], one["temperature"]) for one in row["segments"]]
    assert shown == [([*one.tokens], one.start, one.temperature) for one in wanted.segments]
    found = [one["avg_logprob"] for one in row["segments"]]
    assert found == pytest.approx([one.avg_logprob for one in wanted.segments])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("none.wav",), 1, "PTIR-304.*none.wav.*cannot be read"),
        ((__file__,), 4, r"is no WAV file.*ptir-core\[audio\]"),
        (("-", "-"), 2, "stdin can be read once"),
        (("a.wav", "b.wav", "--srt"), 2, "--srt is for one file"),
        (("a.wav", "--vtt", "--json"), 2, "give --vtt or --json"),
        (("a.wav", "--language", "xx"), 2, "unknown language 'xx'"),
        (("a.wav", "--temperature", "0,hot"), 2, "'0,hot' must be numbers with commas"),
        (("a.wav", "--temperature", "-1"), 2, "temperature -1.0: must be a number >= 0"),
        (("a.wav", "--logprob-threshold", "low"), 2, "'low' must be a number or none"),
        (("a.wav", "--beams", "0"), 2, "beams 0: must be an integer"),
        (("a.wav", "--batch", "0"), 2, "batch 0: must be an integer"),
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
