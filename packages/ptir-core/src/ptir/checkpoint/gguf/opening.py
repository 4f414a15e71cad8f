"""A GGUF file as a checkpoint: configuration and tokenizer from its metadata, mapped tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ptir.checkpoint.config import named_templates
from ptir.checkpoint.gguf.architectures.layer_norms import share
from ptir.checkpoint.gguf.architectures.layout import EMBEDDING, FACTORS, LONGROPE, divisors
from ptir.checkpoint.gguf.architectures.table import layout_of
from ptir.checkpoint.gguf.fields import Keys, plain
from ptir.checkpoint.gguf.metadata import STRING, Strings, Value, typed
from ptir.checkpoint.gguf.pooling import sentence_texts
from ptir.checkpoint.gguf.source import GgufSource
from ptir.checkpoint.gguf.splits import TOKENS, GgufModel
from ptir.errors import CheckpointError
from ptir.models.divisors import DIVIDED
from ptir.models.fields import FIELDS
from ptir.models.rotation import FULL, PROPORTIONAL

TOKENIZER: Final = "tokenizer."
NAMES: Final = ("general.architecture", "general.name")
"""By which a few models' tokens are known that take white space beside them."""
STILL: Final = 1e29
"""What divides the frequency of a pair by this or more does not rotate it."""
CHAT_TEMPLATE: Final = "tokenizer.chat_template"
ENDS: Final = ("eos", "eot", "eom")
"""Whose tokens end a text: all of them, the turn, the message."""


@dataclass(frozen=True)
class GgufVocabulary:
    """The metadata that a tokenizer is made of: ``tokenizer.``'s keys and the model's names.

    ``types`` are those of their values, by key.
    """

    metadata: Mapping[str, Value] = field(repr=False)
    types: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)

    def typed(self) -> dict[str, Any]:
        """The tokenizer's keys as they are written in their types again."""
        kept = (key for key in self.metadata if key.startswith(TOKENIZER))
        return {key: typed(self.metadata[key], self.types.get(key, STRING)) for key in kept}

    def plain(self) -> dict[str, Any]:
        """The same as Python's own numbers, strings and lists.

        Raises ``CheckpointError`` when the file was cut since it was opened.
        """
        for value in self.metadata.values():
            if isinstance(value, Strings):
                value.check_there()
        return {key: plain(value) for key, value in self.metadata.items()}


OWN: Final = (TOKENIZER, "split.", "general.alignment", "general.architecture")
"""Beginnings of keys that belong to the model, its tokenizer, or to how a file is laid out."""
ROTATIONS: Final = "rope."
"""What keys of an architecture begin with that belong to each other: none is kept alone."""


@dataclass(frozen=True)
class Opened:
    """What a GGUF model says of itself, in the words of Hugging Face's files."""

    config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    source: GgufSource
    vocabulary: GgufVocabulary | None
    sentence_files: Mapping[str, str] = field(default_factory=dict[str, str])
    beside: dict[str, Any] = field(default_factory=dict[str, Any])
    """What is said neither of the model nor of its tokenizer: names, licenses, keys of others.

    Numbers are of NumPy's where their type is none of Python's own.
    """


def open_gguf(model: GgufModel) -> Opened:
    """Read and check a model's metadata; raises ``CheckpointError``."""
    architecture, layout = layout_of(model)
    keys = Keys(model.path, model.metadata, architecture)
    tensors = model.tensors
    config = {"model_type": layout.model_type, **layout.config(keys, tensors)}
    if not layout.encodes:
        config |= _tokens(model)
        _divide(model, config)
    _check_size(model, config["vocab_size"])
    return Opened(
        config=config,
        tokenizer_config=_tokenizer_config(model),
        source=GgufSource(model, layout.parts(tensors, config)),
        vocabulary=_vocabulary(model),
        sentence_files=sentence_texts(keys) if layout.encodes else {},
        beside=_beside(model, keys),
    )


def _beside(model: GgufModel, keys: Keys) -> dict[str, Any]:
    """What is not of the model, of its tokenizer, nor of the file; ``keys`` were read."""
    own = (f"{keys.prefix}.{ROTATIONS}", *OWN)
    return {
        key: typed(value, model.types[key])
        for key, value in model.metadata.items()
        if not key.startswith(own) and key not in keys.asked
    }


def _divide(model: GgufModel, config: dict[str, Any]) -> None:
    """Put the divisors of frequencies, and the factor there is besides, into the configuration."""
    rope, where = config.get("rope_parameters"), str(model.path)
    if rope is None:
        return
    if "rope_type" not in rope:
        _rotate_some(model, config.get("global_head_dim", config["head_dim"]) // 2, rope[FULL])
        return
    pairs = int(config["head_dim"] * rope.get("partial_rotary_factor", 1.0)) // 2
    if rope["rope_type"] == "longrope":
        for field, name in LONGROPE.items():
            rope[field] = divisors(model, pairs, where, name)
        return
    found = divisors(model, pairs, where)
    if found is None:
        return
    factor = rope.get("factor", 1.0)
    config["rope_parameters"] = {
        "rope_type": DIVIDED,
        "rope_theta": rope["rope_theta"],
        "divisors": [factor * one for one in found],
    }


def _rotate_some(model: GgufModel, pairs: int, rope: dict[str, Any]) -> None:
    """Divisors that keep all but the first pairs of a head from being rotated, as ``rope`` says it.

    Only layers without a window have them.
    """
    found = divisors(model, pairs, str(model.path))
    if found is None:
        return
    rope |= turning_in_part(found, str(model.path))


def turning_in_part(found: list[float], where: str) -> dict[str, Any]:
    """What a rotation's entry says of divisors that let the first pairs alone rotate."""
    rotated = found.count(1.0)
    first, rest = found[:rotated], found[rotated:]
    if not rotated or first != [1.0] * rotated or any(one < STILL for one in rest):
        raise CheckpointError(
            f"{where}: tensor {FACTORS!r}: only 1 for the first pairs and {STILL:g} or more"
            " for the others is implemented where some layers have a window: choose another model"
        )
    return {"rope_type": PROPORTIONAL, "partial_rotary_factor": share(rotated, len(found))}


def _check_size(model: GgufModel, rows: int) -> None:
    """Every token has a row of the embedding, and every row a token, as converters write them."""
    tokens = model.metadata.get(TOKENS)
    if isinstance(tokens, Strings) and len(tokens) != rows:
        raise CheckpointError(
            f"{model.path}: key {TOKENS!r}: {len(tokens)} tokens, and tensor {EMBEDDING!r} has"
            f" {rows} rows; both must agree: convert the model anew, or fetch it again"
        )


def _tokens(model: GgufModel) -> dict[str, Any]:
    """The ids that begin and end a text."""
    ids = {name: model.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", *ENDS)}
    known = {name: one for name, one in ids.items() if FIELDS["eos_token_id"].holds(one)}
    ends = list(dict.fromkeys(known[name] for name in ENDS if name in known))
    begin = {"bos_token_id": known["bos"]} if "bos" in known else {}
    return begin | ({"eos_token_id": ends} if ends else {})


def _tokenizer_config(model: GgufModel) -> dict[str, Any]:
    """The chat templates, as folders have them."""
    found = {
        key.removeprefix(CHAT_TEMPLATE).removeprefix(".") or "default": value
        for key, value in model.metadata.items()
        if key == CHAT_TEMPLATE or key.startswith(f"{CHAT_TEMPLATE}.")
        if isinstance(value, str)
    }
    return {"chat_template": named_templates(found)} if found else {}


def _vocabulary(model: GgufModel) -> GgufVocabulary | None:
    if not isinstance(model.metadata.get(TOKENS), Strings):
        return None
    keys = (key for key in model.metadata if key.startswith(TOKENIZER) or key in NAMES)
    said = {key: model.metadata[key] for key in keys}
    return GgufVocabulary(said, {key: model.types[key] for key in said})
