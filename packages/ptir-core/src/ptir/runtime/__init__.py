"""Running models: specs are resolved, checkpoints loaded, text generated and judged."""

from ptir.runtime.chat import Answer, AnswerPiece, AnswerRun, Conversation
from ptir.runtime.generation import Generation, GenerationStats, Piece, SamplingOptions
from ptir.runtime.handle import Model
from ptir.runtime.image_model import ImageModel, ImageTextModel
from ptir.runtime.likelihood import Perplexity, perplexity
from ptir.runtime.load import load_model

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
