"""Text: tokenizers, streaming detokenization and stop strings."""

from ptir.text.stops import StopMatcher
from ptir.text.tokenizer import EncodedText, TextStream, Tokenizer

__all__ = ["EncodedText", "StopMatcher", "TextStream", "Tokenizer"]
