"""From a checkpoint to its tokenizer: from files, or from the metadata of a GGUF file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

from ptir.checkpoint import BpeFiles, Checkpoint, DescribedTokenizer, TokenizerText
from ptir.errors import CheckpointError
from ptir.text import Tokenizer

BESIDE: Final = "put the model's tokenizer.json beside the file"


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer, and the tokens it says end a text; or why there is none."""

    tokenizer: Tokenizer | None = None
    ends: tuple[int, ...] = ()
    lack: str = ""


def load_tokenizer(checkpoint: Checkpoint) -> LoadedTokenizer:
    """The checkpoint's tokenizer; none, and no reason, when it carries none.

    What a GGUF file describes is taken before what lies beside it, with a warning where that is
    taken instead. A description that cannot be used is no error as long as nobody gives a text.
    """
    held = checkpoint.tokenizer
    if not isinstance(held, DescribedTokenizer):
        return LoadedTokenizer(_of_text(held))
    from ptir.text.gguf_tokenizer import tokenizer_of  # its tables are no use to other files

    try:
        found = tokenizer_of(held.vocabulary.plain())
    except CheckpointError as error:
        if held.beside is None:
            return LoadedTokenizer(lack=f"the one in its file cannot be used ({error}): {BESIDE}")
        warnings.warn(
            f"{checkpoint.path}: the tokenizer in the file cannot be used ({error}); the one that"
            " lies beside the file is: see that it is this model's",
            stacklevel=2,
        )
        return LoadedTokenizer(_of_text(held.beside))
    return LoadedTokenizer(found.tokenizer, tuple(sorted(found.ends)))


def _of_text(text: TokenizerText) -> Tokenizer | None:
    match text:
        case None:
            return None
        case BpeFiles(vocab, merges):
            return Tokenizer.from_gpt2(vocab, merges)
        case _:
            return Tokenizer.from_json(text)
