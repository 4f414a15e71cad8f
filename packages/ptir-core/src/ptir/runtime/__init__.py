"""Running models: specs are resolved, checkpoints loaded, text generated and judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptir.runtime.chat import Answer, AnswerPiece, AnswerRun, Conversation
from ptir.runtime.generation import Generation, GenerationStats, Piece, SamplingOptions
from ptir.runtime.handle import Model
from ptir.runtime.likelihood import Perplexity, perplexity
from ptir.runtime.load import load_model

if TYPE_CHECKING:
    from ptir.runtime.image_model import ImageModel, ImageTextModel

__all__ = [
    "Answer",
    "AnswerPiece",
    "AnswerRun",
    "Conversation",
    "Generation",
    "GenerationStats",
    "ImageModel",
    "ImageTextModel",
    "Model",
    "Perplexity",
    "Piece",
    "SamplingOptions",
    "load_model",
    "perplexity",
]


def __getattr__(name: str) -> Any:
    """Models that see are imported when they are named: most models do not."""
    if name not in ("ImageModel", "ImageTextModel"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ptir.runtime import image_model

    return getattr(image_model, name)
