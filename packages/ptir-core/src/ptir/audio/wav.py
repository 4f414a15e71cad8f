"""WAV files: chunks, of which one says how samples are stored and one holds them.

The format is that of Microsoft's "Multimedia Programming Interface and Data Specifications 1.0"
(1991), with ``WAVE_FORMAT_EXTENSIBLE``. A file is untrusted: what its header says is compared with
what is there before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptir.errors import AudioError

Array = np.ndarray[Any, Any]

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
KINDS: Final = {
    (PCM, 8): "u1",
    (PCM, 16): "<i2",
    (PCM, 24): "",
    (PCM, 32): "<i4",
    (FLOAT, 32): "<f4",
    (FLOAT, 64): "<f8",
}
"""NumPy's type of a sample by its tag and bits; three bytes are no type of NumPy."""
NAMES: Final = {2: "ADPCM", 6: "A-law", 7: "mu-law", 0x55: "MP3"}
"""What compresses samples, by tag: the usual ones."""
RATES: Final = range(1000, 768_001)
MOST_CHANNELS: Final = 64
STREAMED: Final = frozenset({0, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF - 36, 0x7FFFF000})
"""Sizes that programs write which do not know how long a sound will be."""
PIECE: Final = 1 << 18
"""Frames that are decoded at a time."""


@dataclass(frozen=True)
class WavFormat:
    """How samples are stored: ``tag`` is ``PCM`` or ``FLOAT``, ``rate`` frames a second."""

    tag: int
    channels: int
    rate: int
    bits: int

    @property
    def frame(self) -> int:
        """Bytes of a sample of every channel."""
        return self.channels * self.bits // 8


def is_wav(held: bytes) -> bool:
    """Whether bytes begin as a WAV file does."""
    return held[:4] in (b"RIFF", b"RIFX", b"RF64") and held[8:12] == b"WAVE"


def decode_wav(held: bytes, name: str) -> tuple[Array, int]:
    """The mean of all channels f32[N] and the rate, of a file's bytes; full scale is 1.

    Raises ``AudioError``, in whose messages the file is called ``name``.
    """
    if held[:4] != b"RIFF":
        raise AudioError(
            f"{name}: is a WAV file of the kind {held[:4].decode()}; convert it to a plain one"
            " (ffmpeg -i FILE -c:a pcm_s16le OUT.wav)"
        )
    form, data = _chunks(held, name)
    count = len(data) // form.frame
    if not count:
        raise AudioError(f"{name}: holds no sample; give a recording")
    found = np.empty(count, np.float32)
    for first in range(0, count, PIECE):
        piece = data[first * form.frame : min(count, first + PIECE) * form.frame]
        found[first : first + PIECE] = _mono(piece, form)
    return found, form.rate


def wav_bytes(samples: Array, rate: int) -> bytes:
    """A WAV file of 16 bits of samples f32[N] or f32[N,channels] in [-1, 1]."""
    wide = np.clip(np.asarray(samples, np.float64), -1.0, 1.0)
    data = np.round(wide * 32767).astype("<i2").tobytes()
    channels = 1 if wide.ndim == 1 else wide.shape[1]
    form = struct.pack("<HHIIHH", PCM, channels, rate, 2 * channels * rate, 2 * channels, 16)
    parts = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts


def _chunks(held: bytes, name: str) -> tuple[WavFormat, memoryview]:
    """The format, and the bytes of whole frames."""
    form: WavFormat | None = None
    for kind, size, start in _headers(held, name):
        if kind == b"fmt ":
            form = _format(held[start : start + min(size, 64)], size, name)
        if kind == b"data":
            if form is None:
                raise AudioError(f"{name}: its samples come before what they are (no fmt chunk)")
            there = len(held) - start
            if size in STREAMED:
                size = there
            if size > there:
                raise AudioError(
                    f"{name}: is cut short: its header says {size // form.frame:,} frames, and"
                    f" {there // form.frame:,} are there; fetch or record it again"
                )
            return form, memoryview(held)[start : start + size // form.frame * form.frame]
    lacks = "samples (no data chunk)" if form else "format and samples"
    raise AudioError(f"{name}: is cut short: it has no {lacks}; fetch or record it again")


def _headers(held: bytes, name: str) -> Iterator[tuple[bytes, int, int]]:
    """Kind, size and place of each chunk; chunks begin at even places."""
    place = 12
    while place + 8 <= len(held):
        kind, size = held[place : place + 4], int.from_bytes(held[place + 4 : place + 8], "little")
        yield kind, size, place + 8
        place += 8 + size + size % 2


def _format(held: bytes, size: int, name: str) -> WavFormat:
    if size < 16 or len(held) < 16:
        raise AudioError(f"{name}: its fmt chunk has {min(size, len(held))} bytes and needs 16")
    tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", held)
    if tag == EXTENSIBLE:
        if len(held) < 26:
            raise AudioError(f"{name}: its fmt chunk has {len(held)} bytes and needs 40")
        (tag,) = struct.unpack_from("<H", held, 24)
    found = WavFormat(tag, channels, rate, bits)
    if (tag, bits) not in KINDS:
        known = "8, 16, 24 or 32 bits, or floats of 32 or 64"
        kind = NAMES.get(tag, f"the format {tag}") if tag not in (PCM, FLOAT) else f"{bits} bits"
        raise AudioError(
            f"{name}: its samples are in {kind}; {known} are read: convert it"
            " (ffmpeg -i FILE -c:a pcm_s16le OUT.wav)"
        )
    if not 1 <= channels <= MOST_CHANNELS or rate not in RATES or align != found.frame:
        raise AudioError(
            f"{name}: its header says {channels} channels, {rate} frames a second and {align} bytes"
            f" a frame of {bits} bits; there are 1 to {MOST_CHANNELS} channels,"
            f" {RATES.start} to {RATES.stop - 1} frames a second, and sizes that agree: the file is"
            " damaged"
        )
    return found


def _mono(data: memoryview, form: WavFormat) -> Array:
    """The mean of the channels of whole frames, f32."""
    if form.bits == 24:
        three = np.frombuffer(data, np.uint8).reshape(-1, 3)
        words = np.zeros((len(three), 4), np.uint8)
        words[:, 1:] = three  # the upper bytes, so that the sign is in its place
        values = words.view("<i4").ravel().astype(np.float64) / (1 << 31)
    else:
        stored = np.frombuffer(data, KINDS[form.tag, form.bits])
        if form.tag == FLOAT:
            values = stored.astype(np.float64)
        else:
            middle = 128 if form.bits == 8 else 0
            values = (stored.astype(np.float64) - middle) / (1 << (form.bits - 1))
    with np.errstate(over="ignore", invalid="ignore"):  # told as a damaged file by who opens it
        mean: Array = values.reshape(-1, form.channels).mean(axis=1).astype(np.float32)
    return mean
