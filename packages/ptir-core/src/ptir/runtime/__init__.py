"""Running models: specs are resolved, checkpoints loaded, text generated and judged."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ptir.runtime.generation import Generation, GenerationStats, Piece, SamplingOptions
from ptir.runtime.handle import Model
from ptir.runtime.load import load_model

if TYPE_CHECKING:
    from ptir.runtime.chat import Answer, AnswerPiece, AnswerRun, Conversation
    from ptir.runtime.image_model import ImageModel, ImageTextModel
    from ptir.runtime.likelihood import Perplexity, perplexity
    from ptir.runtime.speech import (
        SpeechModel,
        SpeechOptions,
        SpeechSegment,
        SpeechWord,
        Transcript,
        TranscriptRun,
    )
    from ptir.runtime.text_model import TextModel
    from ptir.text.found import Filled, Ranked, TokenLabel

__all__ = [
    "Answer",
    "AnswerPiece",
    "AnswerRun",
    "Conversation",
    "Filled",
    "Generation",
    "GenerationStats",
    "ImageModel",
    "ImageTextModel",
    "Model",
    "Perplexity",
    "Piece",
    "Ranked",
    "SamplingOptions",
    "SpeechModel",
    "SpeechOptions",
    "SpeechSegment",
    "SpeechWord",
    "TextModel",
    "TokenLabel",
    "Transcript",
    "TranscriptRun",
    "load_model",
    "perplexity",
]


_LATER: Final = {
    "Filled": "text_model",
    **dict.fromkeys(("Answer", "AnswerPiece", "AnswerRun", "Conversation"), "chat"),
    "ImageModel": "image_model",
    "ImageTextModel": "image_model",
    "Perplexity": "likelihood",
    "Ranked": "text_model",
    "SpeechModel": "speech",
    "SpeechOptions": "speech",
    "SpeechSegment": "speech",
    "SpeechWord": "speech",
    "TextModel": "text_model",
    "TokenLabel": "text_model",
    "Transcript": "speech",
    "TranscriptRun": "speech",
    "perplexity": "likelihood",
}
"""What is imported when it is named, and its module: most neither talk, hear, see nor embed."""


def __getattr__(name: str) -> Any:
    """What stands in ``_LATER``."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"ptir.runtime.{_LATER[name]}"), name)
