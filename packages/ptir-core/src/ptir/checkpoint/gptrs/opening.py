"""Models in gpt.rs's checkpoints (``GPTRSCHK``), opened.

The configuration is ``{"kind": ..., "config": ...}``. What gpt.rs has no place for stands under
``RECORD`` beside them, so that a folder comes back bit for bit: the texts of the folder's other
files, and the types of tensors whose elements the format has not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint.gptrs.files import mapped_source
from ptir.checkpoint.gptrs.index import CHECKPOINT, read_preamble
from ptir.checkpoint.gptrs.names import KINDS
from ptir.checkpoint.gptrs.views import View, ViewedSource
from ptir.checkpoint.json_text import parse_settings
from ptir.errors import CheckpointError, TypeRuleError, short
from ptir.params.source import Array, ParamSource
from ptir.types import TensorType, parse_type

KIND: Final = "kind"
CONFIG: Final = "config"
EOS: Final = "eos_token_ids"
FOLDER_CONFIG: Final = "config.json"
RECORD: Final = "ptir"
FILES: Final = "files"
TYPES: Final = "types"


@dataclass(frozen=True)
class Opened:
    """What a checkpoint of gpt.rs says: its tensors, and texts by the names of files of folders.

    ``config.json`` is one of them.
    """

    source: ParamSource
    texts: Mapping[str, str]


def open_gptrs(path: Path) -> Opened:
    """Open a checkpoint of version 2; reads no weights. Raises ``CheckpointError``."""
    said = parse_settings_of(path, read_preamble(path, CHECKPOINT).config)
    kind, config, record = said.get(KIND), said.get(CONFIG), said.get(RECORD, {})
    if not isinstance(kind, str) or not isinstance(config, dict) or not isinstance(record, dict):
        raise CheckpointError(
            f"{path}: the configuration has {short(sorted(said))}; {KIND!r} must be a text,"
            f" {CONFIG!r} an object and {RECORD!r}, where it is there, one too"
        )
    texts = record.get(FILES, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise CheckpointError(f"{path}: {RECORD}.{FILES} must map names of files to texts")
    row = KINDS.get(kind)
    try:
        source = _typed(mapped_source(path, CHECKPOINT), record.get(TYPES, {}))
        if row is not None and row.opened is not None:
            source = row.opened(source, record, config)
    except (CheckpointError, TypeRuleError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if FOLDER_CONFIG not in texts:
        named = {"model_type": kind if row is None else row.model_type}
        config = {**named, **(row.defaults if row else {}), **config}
        if EOS in said:
            config.setdefault("eos_token_id", said[EOS])
        texts = {**texts, FOLDER_CONFIG: json.dumps(config)}
    return Opened(source, texts)


def parse_settings_of(path: Path, text: bytes) -> dict[str, Any]:
    """The configuration of a file, as settings."""
    try:
        return parse_settings(text.decode("utf-8"), f"{path}: configuration")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: configuration is no UTF-8: {error.reason}") from error


# --- elements that the format has not ---


def _typed(source: ParamSource, said: object) -> ParamSource:
    """The tensors, those that ``said`` gives a type read as that from their words."""
    if not isinstance(said, dict) or not all(isinstance(text, str) for text in said.values()):
        raise CheckpointError(f"{RECORD}.{TYPES} must map names of tensors to their types")
    views = {}
    for name in source.names():
        stored = source.type(name)
        type = parse_type(said[name]) if name in said else stored
        if type.nbytes != stored.nbytes:
            raise CheckpointError(f"tensor {short(name)} is {stored}, whose bytes are no {type}")
        views[name] = View(type, (name,), _elements(type))
    return ViewedSource(source, views) if said else source


def _elements(type: TensorType) -> Callable[[Array], Array]:
    def found(array: Array) -> Array:
        import numpy as np

        return np.ascontiguousarray(array).reshape(-1).view(type.dtype.numpy).reshape(type.shape)

    return found
