"""What a GGUF file is told of a checkpoint's text: its tokenizer, its templates, its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ptir.checkpoint import BpeFiles, Checkpoint, DescribedTokenizer, WordFile, eos_token_ids
from ptir.checkpoint.gguf.opening import CHAT_TEMPLATE
from ptir.errors import CheckpointError
from ptir.text import Tokenizer

USES: Final = ("bos", "eos", "pad", "unk")
"""Uses of single tokens that files say."""
MASKS: Final = ("[MASK]", "<mask>")
"""What a masked word is called where nothing says it."""
NO_VOCABULARY: Final = "no_vocab"
"""The tokenizer of a file that has none; llama.cpp opens no file that leaves it out."""


def name_of(checkpoint: Checkpoint) -> str:
    """What a file calls a model."""
    held = checkpoint.tokenizer
    said = (
        held.vocabulary.metadata.get("general.name")
        if isinstance(held, DescribedTokenizer)
        else None
    )
    return said if isinstance(said, str) else checkpoint.path.stem


def text_metadata(
    checkpoint: Checkpoint, architecture: str, config: Mapping[str, Any], encodes: bool
) -> dict[str, Any]:
    """The keys of the tokenizer; a GGUF file's as they are.

    Raises ``CheckpointError`` for one that GGUF files cannot describe.
    """
    held = checkpoint.tokenizer
    if isinstance(held, DescribedTokenizer):
        return held.vocabulary.typed()
    if held is None:
        return {"tokenizer.ggml.model": NO_VOCABULARY}
    from ptir.text.gguf_tokenizer.model_file import MODEL_FILE
    from ptir.text.gguf_tokenizer.writing import described_tokenizer

    model_file = checkpoint.path / MODEL_FILE
    if isinstance(held, BpeFiles):
        held = Tokenizer.from_gpt2(held.vocab, held.merges).to_json()
    if isinstance(held, WordFile):
        held = Tokenizer.from_words(held.vocab, checkpoint.tokenizer_config).to_json()
    found = described_tokenizer(
        held,
        int(config["vocab_size"]),
        _ids(checkpoint, held, (*USES, "mask") if encodes else USES),
        names={"general.architecture": architecture, "general.name": name_of(checkpoint)},
        kinds=int(config.get("type_vocab_size") or 0) if encodes else None,
        model_file=model_file if model_file.is_file() else None,
    )
    return found | _template(checkpoint)


def _template(checkpoint: Checkpoint) -> dict[str, str]:
    found = checkpoint.tokenizer_config.get("chat_template")
    if isinstance(found, list):
        named = {str(one["name"]): str(one["template"]) for one in found}
        default = {CHAT_TEMPLATE: named.pop("default")} if "default" in named else {}
        return default | {f"{CHAT_TEMPLATE}.{name}": one for name, one in named.items()}
    return {CHAT_TEMPLATE: found} if isinstance(found, str) else {}


def _ids(checkpoint: Checkpoint, text: str, uses: Sequence[str]) -> dict[str, int]:
    """Single tokens by their use, as the folder's files say."""
    from ptir.text.gguf_tokenizer.writing import ENDING

    ends = eos_token_ids(checkpoint.config, checkpoint.generation_config)
    if len(ends) > len(ENDING):
        raise CheckpointError(f"{len(ends)} tokens end a text; GGUF files name {len(ENDING)}")
    found = dict(zip(ENDING, ends, strict=False))
    tokenizer = Tokenizer.from_json(text)
    for use in uses:
        said = checkpoint.tokenizer_config.get(f"{use}_token")
        said = said.get("content") if isinstance(said, Mapping) else said
        if use == "mask" and said is None:
            said = next(filter(tokenizer.knows, MASKS), None)
        if use not in found and isinstance(said, str) and tokenizer.knows(said):
            found[use] = tokenizer.id_of(said)
        elif use not in found and type(checkpoint.config.get(f"{use}_token_id")) is int:
            found[use] = int(checkpoint.config[f"{use}_token_id"])
    return found
