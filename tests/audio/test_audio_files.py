"""Recordings as untrusted input: every way to store samples, and what is refused."""

from __future__ import annotations

import io
import struct
import sys
import time
import tracemalloc
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptir.audio import open_audio, wav_bytes
from ptir.errors import AudioError, UnsupportedError, UsageError
from together import together

Array = np.ndarray[Any, Any]
RATE = 16000
LEFT = np.array([0.0, 0.5, -0.5, -1.0, 0.25])
RIGHT = np.array([0.5, -0.5, 0.0, 0.0, -0.25])


def stored(values: Array, tag: int, bits: int) -> bytes:
    """Samples as a file holds them; written out by Python, byte for byte."""
    if tag == 3:
        return b"".join(struct.pack("<f" if bits == 32 else "<d", one) for one in values)
    scale = 1 << (bits - 1)
    whole = [min(scale - 1, int(one * scale)) for one in values]
    if bits == 8:
        return bytes(one + 128 for one in whole)
    return b"".join(one.to_bytes(bits // 8, "little", signed=True) for one in whole)


def chunk(kind: bytes, data: bytes, size: int | None = None) -> bytes:
    said = len(data) if size is None else size
    return kind + struct.pack("<I", said) + data + b"\0" * (len(data) % 2)


def fmt(tag: int = 1, bits: int = 16, channels: int = 1, rate: int = RATE, **other: int) -> bytes:
    frame = other.get("align", channels * bits // 8)
    return struct.pack("<HHIIHH", tag, channels, rate, frame * rate, frame, bits)


def wav(form: bytes, data: bytes, size: int | None = None, front: bytes = b"") -> bytes:
    body = b"WAVE" + front + chunk(b"fmt ", form) + chunk(b"data", data, size)
    return b"RIFF" + struct.pack("<I", len(body)) + body


WAYS = [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)]


@pytest.mark.parametrize(("tag", "bits"), WAYS)
def test_every_way_to_store_samples_is_read(tag: int, bits: int) -> None:
    found = open_audio(wav(fmt(tag, bits), stored(LEFT, tag, bits)), RATE)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, LEFT.astype(np.float32))


@pytest.mark.parametrize(("tag", "bits"), WAYS)
def test_two_channels_are_mixed(tag: int, bits: int) -> None:
    both = np.stack([LEFT, RIGHT], axis=1).ravel()
    found = open_audio(wav(fmt(tag, bits, channels=2), stored(both, tag, bits)), RATE)
    np.testing.assert_array_equal(found, [0.25, 0.0, -0.25, -0.5, 0.0])


def test_an_extensible_header_says_the_kind_further_back() -> None:
    for tag, bits in WAYS:
        more = struct.pack("<HHI", 22, bits, 4) + struct.pack("<H", tag) + b"\0" * 14
        held = wav(fmt(0xFFFE, bits) + more, stored(LEFT, tag, bits))
        np.testing.assert_array_equal(open_audio(held, RATE), LEFT.astype(np.float32))


def test_what_the_standard_library_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(stored(LEFT, 1, 16))
    for given in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes())):
        np.testing.assert_array_equal(open_audio(given, RATE), LEFT.astype(np.float32))


def test_what_is_written_is_read_by_the_standard_library() -> None:
    with wave.open(io.BytesIO(wav_bytes(np.stack([LEFT, RIGHT], 1), 8000))) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (2, 8000, 5)


def test_other_chunks_are_passed_over_also_those_of_odd_length() -> None:
    held = wav(fmt(), stored(LEFT, 1, 16), front=chunk(b"LIST", b"abc"))
    assert len(open_audio(held, RATE)) == 5


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_stream_of_unknown_length_is_read_to_its_end(size: int) -> None:
    assert len(open_audio(wav(fmt(), stored(LEFT, 1, 16), size), RATE)) == 5


HUGE = 2 * 10**9
REFUSED: dict[str, tuple[bytes, type[Exception], str]] = {
    "nothing": (b"", AudioError, "is empty; give a recording"),
    "no sound": (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, UnsupportedError, r"ptir-core\[audio\]"),
    "no sample": (wav(fmt(), b""), AudioError, "holds no sample"),
    "half a sample": (wav(fmt(bits=32), b"\0\0"), AudioError, "holds no sample"),
    "cut": (wav(fmt(), b"\0" * 8, 100), AudioError, "says 50 frames, and 4 are there"),
    "10^9 samples": (wav(fmt(), b"\0" * 8, HUGE), AudioError, "says 1,000,000,000 frames"),
    "cut header": (wav(fmt(), b"")[:16], AudioError, "no format and samples"),
    "no data": (wav(fmt(), b"")[:36], AudioError, "no data chunk"),
    "cut fmt": (wav(fmt(), b"")[:30], AudioError, "has 10 bytes and needs 16"),
    "short fmt": (wav(fmt()[:8], b"\0\0"), AudioError, "has 8 bytes and needs 16"),
    "12 bits": (wav(fmt(bits=12), b"\0\0"), AudioError, "12 bits; 8, 16, 24 or 32"),
    "mu-law": (wav(fmt(tag=7, bits=8), b"\0\0"), AudioError, "samples are in mu-law"),
    "no channel": (wav(fmt(channels=0), b"\0\0"), AudioError, "0 channels"),
    "no rate": (wav(fmt(rate=0), b"\0\0"), AudioError, "0 frames a second"),
    "sizes differ": (wav(fmt(align=3), b"\0\0"), AudioError, "3 bytes a frame"),
    "data first": (
        b"RIFF\0\0\0\0WAVE" + chunk(b"data", b"\0\0"),
        AudioError,
        "come before what they are",
    ),
    "big-endian": (b"RIFX" + wav(fmt(), b"\0\0")[4:], AudioError, "of the kind RIFX"),
    "not a number": (
        wav(fmt(3, 32), struct.pack("<f", float("nan"))),
        AudioError,
        "no finite numbers",
    ),
}


@together()
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_recording_is_refused_at_once(name: str) -> None:
    held, kind, words = REFUSED[name]
    began = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=words):
            open_audio(held, RATE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 22
    assert time.monotonic() - began < 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"none\.wav': cannot be read: No such file"):
        open_audio(tmp_path / "none.wav", RATE)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (np.zeros((2, 3), np.float32), UsageError, r"float32\[2x3\]; give floats \[N\]"),
        (np.zeros(3, np.int16), UsageError, r"int16\[3\]; give floats"),
        (np.zeros(0, np.float32), AudioError, "samples are none"),
        (np.array([np.inf]), AudioError, "no finite number"),
        (np.array([0.1, np.nan]), AudioError, "no finite number"),
        (
            np.array([0.1, -1e10], np.float32),
            AudioError,
            r"samples up to 1e\+10, and full scale is 1",
        ),
        (np.array([1e300, 0.0]), AudioError, r"samples up to 1e\+300"),
        (7, UsageError, "a recording is int; give a path"),
        (io.StringIO("x"), UsageError, "open it in binary mode"),
        (np.broadcast_to(np.float32(0), 6 * 3600 * RATE + 1), AudioError, "at most 21,600 are"),
    ],
)
def test_other_things_are_refused(given: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        open_audio(given, RATE)


class PretendedFile:
    """What soundfile gives of bytes that begin with ``fLaC``."""

    samplerate, frames = 8000, 4

    def __init__(self, file: io.BytesIO) -> None:
        if file.read(4) != b"fLaC":
            raise PretendedError("Format not recognised.")

    def __enter__(self) -> PretendedFile:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read(self, dtype: str, always_2d: bool) -> Array:
        assert always_2d
        return np.array([[0, 1], [1, 1], [0, 0], [-1, 0]], dtype)


class PretendedError(Exception):
    """soundfile's."""


def test_other_formats_are_read_by_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    pretended = SimpleNamespace(SoundFile=PretendedFile, SoundFileError=PretendedError)
    monkeypatch.setitem(sys.modules, "soundfile", pretended)
    np.testing.assert_array_equal(open_audio(b"fLaC....", 8000), [0.5, 1, 0, -0.5])
    assert len(open_audio(b"fLaC....", 16000)) == 8
    with pytest.raises(AudioError, match="no sound of a kind that is read: Format not"):
        open_audio(b"text", 8000)
    monkeypatch.setattr(PretendedFile, "frames", 10**9)
    with pytest.raises(AudioError, match="has 125,000 seconds, and at most"):
        open_audio(b"fLaC....", 8000)
