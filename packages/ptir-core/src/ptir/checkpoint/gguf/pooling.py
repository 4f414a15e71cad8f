"""How a vector is made of a text, as GGUF files say it and as sentence-transformers folders do.

A file has one number for it (``pooling_type``). What else a folder says, such as prompts, stands in
files written here under a key of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ptir.checkpoint.gguf.fields import Keys
from ptir.checkpoint.json_text import parse_settings
from ptir.checkpoint.sentence import (
    dense_folders,
    module_texts,
    sentence_modules,
)
from ptir.errors import CheckpointError, short
from ptir.models.pooling import MEAN, Normalize

POOLING: Final = "pooling_type"
"""The key behind the architecture's prefix."""
NONE, BY_FIRST, RANK = 0, 2, 4
"""No pooling, the first vector, and the score of a classifier."""
TYPES: Final[Mapping[int, str]] = {1: "mean", BY_FIRST: "cls", 3: "lasttoken"}
"""What sentence-transformers calls those that pool."""
WHOLE: Final = "ptir.sentence_files"
"""The key of all that a folder says, as JSON: its texts by path."""


def pooling_of(keys: Keys) -> int:
    """The number that a file says; ``NONE`` where it says nothing."""
    found: Any = keys.found(POOLING, NONE)
    known = (NONE, *TYPES, RANK)
    rule = f"one of {', '.join(map(str, known))} is implemented: choose another model"
    keys.require(type(found) is int and found in known, POOLING, rule)
    return int(found)


def sentence_texts(keys: Keys) -> dict[str, str]:
    """What a file says of texts, as the settings of a folder; nothing where it does not pool.

    Vectors get the length 1, as llama.cpp gives them, since no key tells.
    """
    said = keys.metadata.get(WHOLE)
    if said is not None:
        where = f"{keys.path}: key {WHOLE!r}"
        if not isinstance(said, str):
            raise CheckpointError(f"{where}: {short(said)} must be a string; fetch the file again")
        texts = parse_settings(said, where)
        if not all(isinstance(one, str) for one in texts.values()):
            raise CheckpointError(f"{where}: must be an object of texts; fetch the file again")
        if dense_folders(texts):
            raise CheckpointError(f"{where}: names a Dense module, which no file holds")
        return texts
    pooled = TYPES.get(pooling_of(keys))
    return module_texts(pooled) if pooled else {}


def described_pooling(texts: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys for what a folder says: that behind the prefix is ``POOLING``."""
    if config.get("num_labels"):
        by_first = config.get("classifier_pooling") == "cls"
        return {POOLING: BY_FIRST if by_first else RANK}
    said = sentence_modules(texts)
    modes = (said.pooling if said and said.pooling else MEAN).modes
    number = next((number for number, mode in TYPES.items() if (mode,) == modes), NONE)
    found: dict[str, Any] = {POOLING: number} if said else {}
    plain = said is not None and said.steps == (Normalize(),) and number != NONE
    alone = plain and texts.keys() <= module_texts("mean").keys()
    return found if not texts or alone else {**found, WHOLE: json.dumps(dict(texts))}
