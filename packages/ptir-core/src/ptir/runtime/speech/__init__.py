"""Speech to text: special tokens, the rules of timestamps, windows over long recordings."""

from ptir.runtime.speech.options import SpeechOptions
from ptir.runtime.speech.speech_model import SpeechModel
from ptir.runtime.speech.transcript import SpeechSegment, SpeechWord, Transcript, TranscriptRun

__all__ = [
    "SpeechModel",
    "SpeechOptions",
    "SpeechSegment",
    "SpeechWord",
    "Transcript",
    "TranscriptRun",
]
