"""A checkpoint as other programs read it: files, names, orders and rotations that they know."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Final

from ptir.checkpoint import Checkpoint, DescribedTokenizer
from ptir.errors import CheckpointError
from ptir.models import definition
from ptir.models.divisors import portable
from ptir.models.mixture import PARTED
from ptir.models.published import class_of
from ptir.models.table import GENERATES, READS
from ptir.params.unstacked import in_own_names, unstacked
from ptir.runtime.gguf_linear import as_published

EXPERTS: Final = ("num_local_experts", "num_experts")
"""Keys that count experts."""
CHOSEN: Final = ("num_experts_per_tok", "top_k_experts")
"""Keys that count those that work for a token."""


def expert_count(checkpoint: Checkpoint) -> int | None:
    """How many experts a layer has, as ``config.json`` or the family's defaults say."""
    architecture = definition(str(checkpoint.config["model_type"]))
    config = {**architecture.defaults, **architecture.prepare(checkpoint.config)}
    found = (config[key] for key in EXPERTS if config.get(key) is not None)
    return next(map(int, found), None)


def expert_share(checkpoint: Checkpoint) -> float:
    """Which share of the experts works for a token; 1 where a model has none."""
    architecture = definition(str(checkpoint.config["model_type"]))
    config = {**architecture.defaults, **architecture.prepare(checkpoint.config)}
    experts = expert_count(checkpoint)
    chosen = next((int(config[key]) for key in CHOSEN if config.get(key) is not None), None)
    return chosen / experts if chosen and experts else 1.0


def _with_experts(checkpoint: Checkpoint) -> Checkpoint:
    """A mixture whose experts have the names of their family; warns where they keep their own."""
    architecture = definition(str(checkpoint.config["model_type"]))
    config, experts = dict(checkpoint.config), expert_count(checkpoint)
    if not architecture.stacked or experts is None:
        return checkpoint
    source = unstacked(checkpoint.source, architecture.stacked, experts)
    if kept := next(in_own_names(source, architecture.stacked), None):
        warnings.warn(
            f"{checkpoint.path}: its experts are written under names that ptir reads and others do"
            f" not ({kept}); for these, fetch the folder that the family's authors publish",
            stacklevel=3,
        )
    elif config.pop(PARTED, False):
        checkpoint = replace(
            checkpoint, config={k: v for k, v in checkpoint.config.items() if k != PARTED}
        )
    return replace(checkpoint, source=source)


def with_files(checkpoint: Checkpoint) -> Checkpoint:
    """A GGUF file's checkpoint with its tokenizer as files, rotations and orders that others know.

    Any other is as it is. Warns where the described tokenizer cannot be saved and there is none
    beside the file.
    """
    held, checkpoint = checkpoint.tokenizer, _with_experts(as_published(checkpoint))
    checkpoint = replace(checkpoint, config=portable(checkpoint.config))
    if not isinstance(held, DescribedTokenizer):
        return checkpoint
    from ptir.text.gguf_tokenizer import tokenizer_of

    family = definition(str(checkpoint.config["model_type"]))
    if family.capabilities == GENERATES:
        called = {"architectures": [class_of(family.model_type)]}
        checkpoint = replace(checkpoint, config={**called, **checkpoint.config})
    try:
        found = tokenizer_of(held.vocabulary.plain(), portable=True)
        text = found.tokenizer.to_json()
    except CheckpointError as error:
        if held.beside is None:
            said = f"its tokenizer cannot be written ({error}); the model is written without"
            warnings.warn(f"{checkpoint.path}: {said}", stacklevel=2)
        return replace(checkpoint, tokenizer=held.beside)
    named = {use: found.tokenizer.token(one) for use, one in found.special.items()}
    encodes = family.capabilities == READS
    if encodes:  # what begins a text and ends it has other names there
        named |= {"cls": named["bos"]} if "bos" in named and "cls" not in named else {}
        named |= {"sep": named["eos"]} if "eos" in named and "sep" not in named else {}
    kept = ("cls", "sep", "pad", "mask", "unk") if encodes else ("bos", "eos", "pad")
    tokens = {f"{use}_token": one for use, one in named.items() if use in kept}
    begin = {"bos_token_id": found.special["bos"]} if "bos" in found.special else {}
    ends = {"eos_token_id": sorted(found.ends)} if found.ends else {}
    return replace(
        checkpoint,
        tokenizer=text,
        tokenizer_config={**tokens, **checkpoint.tokenizer_config},
        generation_config={} if encodes else begin | ends | dict(checkpoint.generation_config),
    )
