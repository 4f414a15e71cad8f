"""Text: tokenizers, streaming detokenization and stop strings."""

from ptir.text.stops import StopMatcher
from ptir.text.tokenizer import TextStream, Tokenizer

__all__ = ["StopMatcher", "TextStream", "Tokenizer"]
