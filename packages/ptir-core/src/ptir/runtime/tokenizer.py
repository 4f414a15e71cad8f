"""From a checkpoint to its tokenizer: from files, or from the metadata of a GGUF file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ptir.checkpoint import BpeFiles, Checkpoint, DescribedTokenizer, TokenizerText, WordFile
from ptir.errors import CheckpointError
from ptir.text import Tokenizer

if TYPE_CHECKING:
    from ptir.text.chat_template import ChatTemplates

BESIDE: Final = "put the model's tokenizer.json beside the file"


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer; or why there is none, if that is known.

    ``special`` are the tokens that a GGUF file gives a use, ``bos_token`` and so on, and ``ends``
    the ids of those that end a text.
    """

    tokenizer: Tokenizer | None = None
    lack: str = ""
    special: Mapping[str, str] = field(default_factory=dict)
    ends: frozenset[int] = frozenset()


@dataclass(frozen=True)
class CheckpointText:
    """What a checkpoint says of text: its tokenizer, built once it is asked for, and its ends.

    What a GGUF file describes is taken before what lies beside it, with a warning where that is
    taken instead. A description that cannot be used is no error as long as nobody gives a text.
    ``name`` is what messages call the model, where that is not its path.
    """

    checkpoint: Checkpoint
    name: str = ""

    @cached_property
    def loaded(self) -> LoadedTokenizer:
        """The tokenizer; none, and no reason, when the checkpoint carries none."""
        held = self.checkpoint.tokenizer
        if not isinstance(held, DescribedTokenizer):
            return LoadedTokenizer(_of_text(held, self.checkpoint.tokenizer_config))
        from ptir.text.gguf_tokenizer import tokenizer_of  # its tables are no use to other files

        try:
            found = tokenizer_of(held.vocabulary.plain())
            named = {f"{use}_token": found.tokenizer.token(n) for use, n in found.special.items()}
            return LoadedTokenizer(found.tokenizer, special=named, ends=found.ends)
        except CheckpointError as error:
            if held.beside is None:
                why = f"the one in its file cannot be used ({error}): {BESIDE}"
                return LoadedTokenizer(lack=why)
            path = self.checkpoint.path
            warnings.warn(
                f"{path}: the tokenizer in the file cannot be used ({error}); the one that lies"
                " beside the file is: see that it is this model's",
                stacklevel=2,
            )
        try:
            return LoadedTokenizer(_of_text(held.beside, {}))
        except CheckpointError as error:
            raise CheckpointError(f"{path}: beside it: {error}") from error

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The tokens that a GGUF file's vocabulary says end a text, without its tokenizer."""
        held = self.checkpoint.tokenizer
        if not isinstance(held, DescribedTokenizer):
            return ()
        if "loaded" in vars(self) and self.loaded.ends:
            return tuple(sorted(self.loaded.ends))
        from ptir.text.gguf_tokenizer import ends_of

        try:
            return tuple(sorted(ends_of(held.vocabulary.metadata)))
        except CheckpointError:  # told when a text needs the tokenizer
            return ()

    @cached_property
    def templates(self) -> ChatTemplates:
        """The chat templates, and the special tokens that they write.

        Raises ``CheckpointError`` where what the checkpoint says of them is no template.
        """
        from ptir.text.chat_template import ChatTemplates, read_templates, special_tokens

        path, config = self.checkpoint.path, self.checkpoint.tokenizer_config
        try:
            found = read_templates(config)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: tokenizer_config.json: {error}") from error
        special = {**self.loaded.special, **special_tokens(config)}
        return ChatTemplates(found, special, self.name or str(path))

    def answer_ends(self, template: str) -> tuple[int, ...]:
        """The tokens that end an answer, as the tokenizer's settings and a template's text say.

        Files of older models name only the token that ends a text, which ends no answer.
        """
        from ptir.text.chat_template import special_tokens
        from ptir.text.gguf_tokenizer.special import ENDS, NO_ENDS

        tokenizer = self.loaded.tokenizer
        if tokenizer is None:
            return ()
        written = {name for name in ENDS if name in template}
        names = {special_tokens(self.checkpoint.tokenizer_config).get("eos_token", ""), *written}
        for name, others in NO_ENDS:
            if written.issuperset(others):
                names.discard(name)
        return tuple(sorted(tokenizer.id_of(one) for one in names if tokenizer.knows(one)))

    @property
    def has_template(self) -> bool:
        """Whether there is any chat template."""
        return bool(self.checkpoint.tokenizer_config.get("chat_template"))


def text_of(checkpoint: Checkpoint, name: str = "") -> CheckpointText:
    """What ``checkpoint`` says of text; files of tokenizers are read and checked at once."""
    found = CheckpointText(checkpoint, name)
    if not isinstance(checkpoint.tokenizer, DescribedTokenizer):
        _ = found.loaded
    return found


def _of_text(text: TokenizerText, config: Mapping[str, Any]) -> Tokenizer | None:
    match text:
        case None:
            return None
        case BpeFiles(vocab, merges):
            return Tokenizer.from_gpt2(vocab, merges)
        case WordFile(vocab):
            return Tokenizer.from_words(vocab, config)
        case _:
            return Tokenizer.from_json(text)
