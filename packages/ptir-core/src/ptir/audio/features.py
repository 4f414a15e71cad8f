"""Log-mel features: how loud each band of pitch is, a row for every 10 ms, by our own ops.

The short-time Fourier transform is a convolution: its filters are cosines and sines under a Hann
window, and it moves on by ``hop`` samples, which are the channels of what it runs over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.creation import tensor
from ptir.capture.jit import jit
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short

Array = np.ndarray[Any, Any]

LEAST: Final = 1e-10
"""The least power, whose logarithm is taken."""
MOST_SAMPLES: Final = 1 << 25
"""Of a window: half an hour of sound."""
RANGE: Final = 8.0
"""What is this much below the greatest logarithm (80 dB) is raised to that."""


@dataclass(frozen=True)
class FeatureSettings:
    """How features are made: samples a second, of a transform and of a step, and bands.

    ``frames`` are those of a window, of which the model takes one at a time.
    """

    rate: int
    window: int
    hop: int
    mels: int
    frames: int

    @property
    def samples(self) -> int:
        """Samples of a window."""
        return self.frames * self.hop

    @property
    def seconds(self) -> float:
        """The length of a window."""
        return self.samples / self.rate


_SETTINGS: Final = {
    "sampling_rate": (16000, 1000, 192_000),
    "n_fft": (400, 16, 1 << 12),
    "hop_length": (160, 1, 1 << 12),
}
"""By key of ``preprocessor_config.json``: what it is unless it says so, the least and the most."""


def feature_settings(given: Mapping[str, Any], *, mels: int, frames: int) -> FeatureSettings:
    """What a ``preprocessor_config.json`` says, for a model of ``mels`` bands and ``frames``.

    Its filters are computed, never read: they follow from these numbers. Raises
    ``CheckpointError``.
    """
    where = "preprocessor_config.json"
    found = dict[str, int]()
    for key, (usual, least, most) in _SETTINGS.items():
        value = usual if given.get(key) is None else given[key]
        if type(value) is not int or not least <= value <= most:
            raise CheckpointError(
                f"{where}: {key} {short(value)} must be an integer >= {least} and <= {most};"
                " correct it, or fetch the file again"
            )
        found[key] = value
    if given.get("feature_size") not in (None, mels):
        raise CheckpointError(
            f"{where}: feature_size {short(given['feature_size'])} and num_mel_bins {mels} in"
            " config.json must be equal; fetch both again"
        )
    rate, window, hop = found.values()
    if hop > window:
        raise CheckpointError(f"{where}: hop_length {hop} must be at most n_fft {window}")
    if frames * hop > MOST_SAMPLES:
        raise CheckpointError(
            f"{where}: hop_length {hop} makes {frames * hop:,} samples of the {frames:,} frames of"
            f" config.json, and at most {MOST_SAMPLES:,} are heard at a time; fetch both again"
        )
    return FeatureSettings(rate, window, hop, mels, frames)


def mel_filters(settings: FeatureSettings) -> Array:
    """The weight of each frequency in each band, f32[window // 2 + 1, mels].

    Triangles of area 1 on the scale of Slaney's Auditory Toolbox (1998): linear up to 1 kHz, then
    logarithmic.
    """
    bins = np.linspace(0.0, settings.rate / 2, settings.window // 2 + 1)
    ends = _hertz(np.linspace(0.0, _mel(settings.rate / 2), settings.mels + 2))
    low, middle, high = ends[:-2], ends[1:-1], ends[2:]
    rising = (bins[:, None] - low) / (middle - low)
    falling = (high - bins[:, None]) / (high - middle)
    area = 2.0 / (high - low)
    return np.asarray(np.maximum(0.0, np.minimum(rising, falling)) * area, np.float32)


_LINEAR: Final = 200.0 / 3
_KNEE: Final = 15.0
"""The mel of 1 kHz."""
_STEP: Final = math.log(6.4) / 27


def _mel(hertz: float) -> float:
    return hertz / _LINEAR if hertz < 1000.0 else _KNEE + math.log(hertz / 1000.0) / _STEP


def _hertz(mels: Array) -> Array:
    return np.where(mels < _KNEE, mels * _LINEAR, 1000.0 * np.exp((mels - _KNEE) * _STEP))


def fourier_filters(settings: FeatureSettings) -> Array:
    """Cosines, then sines, under a Hann window: f32[taps, 1, hop, 2 * (window // 2 + 1)].

    Zeros behind them make the window a multiple of a step.
    """
    window, hop = settings.window, settings.hop
    taps = -(-window // hop)
    time = np.arange(window)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * time / window)
    turns = np.outer(time, np.arange(window // 2 + 1)) % window  # exact, as an angle is not
    angles = 2 * np.pi * turns / window
    both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * hann[:, None]
    filters = np.zeros((taps * hop, both.shape[1]), np.float32)
    filters[:window] = both
    return filters.reshape(taps, 1, hop, -1)


class LogMel:
    """Features of recordings, a window's frames in one run on ``target``."""

    def __init__(self, settings: FeatureSettings, target: Target) -> None:
        self.settings = settings
        self._target = target
        self._fourier = tensor(fourier_filters(settings), backend=target)
        self._mels = tensor(mel_filters(settings), backend=target)
        self._run = jit(log_mel)

    def __call__(self, samples: Array) -> Array:
        """Features of samples f32[N] at the settings' rate: f32[frames, mels].

        What is shorter than a window is filled up with silence, so that there are at least the
        frames of one; of what is longer there are ``N // hop``. The range is that of the whole.
        """
        settings = self.settings
        samples = np.pad(samples, (0, max(0, settings.samples - len(samples))))
        frames = len(samples) // settings.hop
        padded = _mirrored(samples, settings.window // 2)
        found = [
            self._window(padded, first)[: frames - first]
            for first in range(0, frames, settings.frames)
        ]
        loud = np.concatenate(found) if len(found) > 1 else found[0]
        raised = np.maximum(loud, loud.max() - np.float32(RANGE))
        result: Array = (raised + np.float32(4)) / np.float32(4)
        return result

    def _window(self, padded: Array, first: int) -> Array:
        """Logarithms of the frames from ``first`` on, as many as a window has."""
        settings = self.settings
        taps = self._fourier.shape[0]
        blocks = np.zeros((settings.frames + taps - 1, settings.hop), np.float32)
        part = padded[first * settings.hop :][: blocks.size]
        blocks.reshape(-1)[: len(part)] = part
        given = tensor(blocks[None, :, None, :], backend=self._target)
        found: Array = self._run(given, self._fourier, self._mels).numpy()
        return found


def log_mel(blocks: Tensor, fourier: Tensor, mels: Tensor) -> Tensor:
    """The logarithm to 10 of the power in each band: f32[frames, mels].

    Of samples in steps f32[1, frames + taps - 1, 1, hop], by ``fourier_filters`` and
    ``mel_filters``.
    """
    found = F.conv2d(blocks, fourier)
    spectrum = found.reshape(found.shape[1], found.shape[3])
    bins = mels.shape[0]
    cosines, sines = spectrum[:, :bins], spectrum[:, bins:]
    power = cosines * cosines + sines * sines
    return F.log(F.maximum(F.linear(power, mels, layout="io"), LEAST)) * (1 / math.log(10))


def _mirrored(samples: Array, reach: int) -> Array:
    """``reach`` samples more on both sides: those behind the first and before the last, mirrored.

    The transform of a frame is centered there.
    """
    return np.pad(samples, reach, mode="reflect")
