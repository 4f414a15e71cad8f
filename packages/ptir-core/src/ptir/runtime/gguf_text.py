"""The one place where a GGUF file's metadata becomes a tokenizer."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Final

from ptir.checkpoint import DescribedTokenizer
from ptir.text import Tokenizer

BUILDER: Final = "ptir.text.gguf_tokenizer"
"""The module whose ``tokenizer_of`` takes the metadata; until it exists no tokenizer is made."""


def described_tokenizer(held: DescribedTokenizer) -> Tokenizer | None:
    """The tokenizer that the metadata describes; None where nothing can make it yet."""
    if importlib.util.find_spec(BUILDER) is None:
        return None
    found: Tokenizer = (
        importlib.import_module(BUILDER).tokenizer_of(held.vocabulary.plain()).tokenizer
    )
    return found
