"""Running models: specs are resolved, checkpoints loaded, text generated."""

from ptir.runtime.generation import Generation, GenerationStats, Piece, SamplingOptions
from ptir.runtime.handle import Model
from ptir.runtime.load import load_model

__all__ = ["Generation", "GenerationStats", "Model", "Piece", "SamplingOptions", "load_model"]
