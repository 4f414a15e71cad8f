"""Sound: opening recordings safely, other rates, log-mel features."""

from ptir.audio.features import FeatureSettings, LogMel, feature_settings
from ptir.audio.recording import GivenAudio, open_audio
from ptir.audio.resampling import resampled
from ptir.audio.wav import WavFormat, wav_bytes

__all__ = [
    "FeatureSettings",
    "GivenAudio",
    "LogMel",
    "WavFormat",
    "feature_settings",
    "open_audio",
    "resampled",
    "wav_bytes",
]
