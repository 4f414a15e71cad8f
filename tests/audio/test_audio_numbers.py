"""Other rates and log-mel features, against closed forms and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptir.audio import FeatureSettings, LogMel, feature_settings, open_audio, resampled, wav_bytes
from ptir.audio.features import mel_filters
from ptir.errors import CheckpointError
from running import REF

Array = np.ndarray[Any, Any]
RATES = (8000, 11025, 22050, 44100, 48000, 15999)


def tone(hertz: float, rate: int, seconds: float = 0.5) -> Array:
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate).astype(np.float32)


def inner(samples: Array) -> Array:
    """Samples away from the ends, beyond which there is silence."""
    return samples[1500:-1500]


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_is_the_same_tone_at_another_rate(rate: int) -> None:
    found, wanted = resampled(tone(440, rate), rate, 16000), tone(440, 16000)
    assert abs(len(found) - len(wanted)) <= 2
    size = min(len(found), len(wanted))
    assert np.abs(inner(found[:size]) - inner(wanted[:size])).max() < 2e-4


@pytest.mark.parametrize("rate", [22050, 44100, 48000])
def test_what_the_lower_rate_cannot_hold_is_left_out(rate: int) -> None:
    assert np.abs(inner(resampled(tone(8800, rate), rate, 16000))).max() < 2e-3


@pytest.mark.parametrize("rate", RATES[:-1])
def test_a_level_stays_and_sizes_are_exact(rate: int) -> None:
    found = resampled(np.full(12345, 0.5, np.float32), rate, 16000)
    assert len(found) == -(-12345 * 16000 // rate)
    np.testing.assert_allclose(inner(found), 0.5, rtol=1e-6)


def test_a_file_of_another_rate_is_resampled() -> None:
    found = open_audio(wav_bytes(0.5 * tone(440, 44100), 44100), 16000)
    assert np.abs(inner(found) - inner(0.5 * tone(440, 16000))).max() < 3e-4


SMALL = FeatureSettings(rate=16000, window=400, hop=160, mels=20, frames=50)


def in_float64(samples: Array, settings: FeatureSettings) -> Array:
    """Log-mel features by NumPy's transform, in float64."""
    short = max(0, settings.samples - len(samples))
    wide = np.pad(samples.astype(np.float64), (0, short))
    padded = np.pad(wide, settings.window // 2, mode="reflect")
    hann = np.hanning(settings.window + 1)[:-1]
    windows = np.lib.stride_tricks.sliding_window_view(padded, settings.window)
    rows = windows[:: settings.hop][: len(wide) // settings.hop] * hann
    power = np.abs(np.fft.rfft(rows)) ** 2
    loud = np.log10(np.maximum(power @ mel_filters(settings).astype(np.float64), 1e-10))
    return (np.maximum(loud, loud.max() - 8) + 4) / 4


@pytest.mark.parametrize("size", [1, 4000, 8000, 19283])
def test_features_are_those_of_a_fourier_transform(size: int) -> None:
    rng = np.random.default_rng(size)
    samples = (tone(700, 16000, 2)[:size] + 0.01 * rng.standard_normal(size)).astype(np.float32)
    found = LogMel(SMALL, REF)(samples)
    wanted = in_float64(samples, SMALL)
    assert found.shape == wanted.shape == (max(50, size // 160), 20)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_silence_has_features() -> None:
    found = LogMel(SMALL, REF)(np.zeros(100, np.float32))
    np.testing.assert_allclose(found, -1.5)


def test_bands_are_those_of_the_slaney_scale() -> None:
    """Literal: the first bands are 2 x 37.2 Hz wide; a triangle's area is 1."""
    settings = FeatureSettings(16000, 400, 160, 80, 3000)
    filters = mel_filters(settings)
    assert filters.shape == (201, 80)
    np.testing.assert_allclose(filters[1, 0], 0.02486259, rtol=1e-4)
    middles = (np.arange(201) * 40.0) @ filters / filters.sum(axis=0)
    assert middles[0] == pytest.approx(40, abs=4)
    assert middles[79] == pytest.approx(7724, abs=30)
    np.testing.assert_allclose(filters[:, 40:].sum(axis=0) * 40.0, 1, rtol=0.08)


def test_a_checkpoint_says_how_features_are_made() -> None:
    found = feature_settings({"hop_length": 80, "feature_size": 8}, mels=8, frames=100)
    assert (found.rate, found.window, found.hop, found.seconds) == (16000, 400, 80, 0.5)
    assert feature_settings({}, mels=80, frames=3000).samples == 480000
    unsaid = {"n_fft": None, "feature_size": None}
    assert feature_settings(unsaid, mels=80, frames=3000).samples == 480000


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n_fft": 10**9}, r"n_fft 1000000000 must be an integer >= 16 and <= 4096"),
        ({"sampling_rate": True}, "sampling_rate True must be"),
        ({"hop_length": 0}, "hop_length 0 must be"),
        ({"hop_length": 401}, "hop_length 401 must be at most n_fft 400"),
        ({"feature_size": 128}, "feature_size 128 and num_mel_bins 80 in config.json"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        feature_settings(given, mels=80, frames=3000)


def test_a_window_of_hours_is_refused() -> None:
    with pytest.raises(CheckpointError, match="makes 320,000,000 samples of the 2,000,000 frames"):
        feature_settings({}, mels=80, frames=2_000_000)
