"""Opening recordings that nobody vouches for, as samples of one channel at a wanted rate.

WAV is read here; other formats by libsndfile (``soundfile``, an extra), within the same limits.
"""

from __future__ import annotations

import importlib
import io
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np

from ptir.audio.resampling import resampled
from ptir.audio.wav import RATES, decode_wav, is_wav
from ptir.errors import AudioError, UnsupportedError, UsageError, short
from ptir.files import read_file, read_path

Array = np.ndarray[Any, Any]

MOST_BYTES: Final = 1 << 31
MOST_SECONDS: Final = 6 * 3600
"""Of a recording: 1.3 GiB as samples of 16 kHz."""
LOUDEST: Final = 2.0**32
"""Of floats, whose full scale is 1: some files hold whole numbers as floats."""
EXTRA: Final = "pip install 'ptir-core[audio]'"

GivenAudio: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO | Array"
"""A path, a file's bytes, a file, or samples f32[N] in [-1, 1] at the rate that is wanted."""


def open_audio(given: GivenAudio, rate: int) -> Array:
    """The recording's channels mixed, f32[N] at ``rate`` frames a second.

    Raises ``AudioError`` for a file that is missing, damaged, silent of samples, of a kind that is
    not read or longer than ``MOST_SECONDS``, ``UsageError`` for what is none of ``GivenAudio``, and
    ``UnsupportedError`` where a kind needs an extra that is not installed.
    """
    if isinstance(given, np.ndarray):
        return _checked(given, rate)
    name = "the recording"
    if isinstance(given, str | os.PathLike):
        name = str(Path(given))
        held = read_path(Path(given), MOST_BYTES, AudioError, "split it")
    elif isinstance(given, bytes | bytearray | memoryview):
        held = bytes(given)
    elif hasattr(given, "read"):
        said = getattr(given, "name", None)
        name = said if isinstance(said, str) else name
        held = read_file(given, name, MOST_BYTES, AudioError, "split it")
    else:
        raise UsageError(
            f"a recording is {type(given).__name__}; give a path, bytes, a file or an array f32[N]"
        )
    if not held:
        raise AudioError(f"{name}: is empty; give a recording")
    samples, found = decode_wav(held, name) if is_wav(held) else _by_soundfile(held, name)
    _check_length(len(samples) / found, name)
    _check_numbers(samples, name)
    return resampled(samples, found, rate)


def _checked(given: Array, rate: int) -> Array:
    shape = "x".join(map(str, given.shape))
    if given.ndim != 1 or given.dtype.kind != "f":
        raise UsageError(
            f"samples are {given.dtype}[{shape}]; give floats [N] in [-1, 1] at {rate} a second, or"
            " a WAV file"
        )
    if not given.size:
        raise AudioError("the samples are none; give at least one")
    _check_length(len(given) / rate, "the array")
    _check_numbers(given, "the array")
    return np.ascontiguousarray(given, np.float32)


def _check_numbers(samples: Array, name: str) -> None:
    """Refuse what is no sound, and numbers whose squares would pass the range of f32."""
    if not len(samples):
        raise AudioError(f"{name}: holds no sample; give a recording")
    most = float(np.abs(samples).max())
    if math.isfinite(most) and most <= LOUDEST:
        return
    found = f"samples up to {most:.3g}, and full scale is 1"
    if not math.isfinite(most):
        found = "samples that are no finite numbers"
    raise AudioError(f"{name}: holds {found}; the file is damaged, or what wrote it is wrong")


def _check_length(seconds: float, name: str) -> None:
    if seconds > MOST_SECONDS:
        raise AudioError(
            f"{name}: has {seconds:,.0f} seconds, and at most {MOST_SECONDS:,} are read; split it"
        )


def _by_soundfile(held: bytes, name: str) -> tuple[Array, int]:
    """What libsndfile reads: FLAC, Ogg, MP3 and others."""
    try:
        soundfile = importlib.import_module("soundfile")
    except ImportError as error:
        raise UnsupportedError(
            f"{name}: is no WAV file (it begins with {short(held[:8])}); other formats need"
            f" soundfile, which is not installed: {EXTRA}, or convert it (ffmpeg -i FILE OUT.wav)"
        ) from error
    try:
        with soundfile.SoundFile(io.BytesIO(held)) as file:
            if file.samplerate not in RATES or file.frames < 1:
                raise AudioError(
                    f"{name}: has {file.frames} frames of {file.samplerate} a second; there is"
                    " nothing to hear"
                )
            _check_length(file.frames / file.samplerate, name)
            channels = file.read(dtype="float32", always_2d=True)
            return channels.mean(axis=1), int(file.samplerate)
    except soundfile.SoundFileError as error:
        raise AudioError(f"{name}: is no sound of a kind that is read: {error}") from error
