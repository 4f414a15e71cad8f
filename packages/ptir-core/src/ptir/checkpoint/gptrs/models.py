"""Models in gpt.rs's checkpoints (``GPTRSCHK``): opened and saved.

The configuration is ``{"kind": ..., "config": ...}``. What gpt.rs has no place for stands under
``RECORD`` beside them, so that a folder comes back bit for bit: the texts of the folder's other
files, and the types of tensors whose elements the format has not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ptir.checkpoint.config import eos_token_ids
from ptir.checkpoint.gptrs.files import mapped_source, write_tensors
from ptir.checkpoint.gptrs.index import CHECKPOINT, TAGS, read_preamble
from ptir.checkpoint.gptrs.names import KINDS, kind_of
from ptir.checkpoint.gptrs.views import View, ViewedSource
from ptir.checkpoint.json_text import parse_settings
from ptir.checkpoint.save import refuse_file, side_files, stored_types, values_of
from ptir.errors import CheckpointError, TypeRuleError, short
from ptir.params.source import Array, ParamSource
from ptir.types import DTYPES, DType, TensorType, parse_type

if TYPE_CHECKING:
    from ptir.checkpoint.folder import Checkpoint

KIND: Final = "kind"
CONFIG: Final = "config"
EOS: Final = "eos_token_ids"
LABELS: Final = "id2label"
FOLDER_CONFIG: Final = "config.json"
RECORD: Final = "ptir"
FILES: Final = "files"
TYPES: Final = "types"
TAGGED: Final = tuple(TAGS.values())
WORD: Final = DTYPES["i32"]
"""Of what elements that the format has not are written in."""


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


def save_gptrs(
    checkpoint: Checkpoint,
    path: str | Path,
    *,
    dtype: DType | None = None,
    overwrite: bool = False,
) -> Path:
    """Write ``checkpoint`` as one file of gpt.rs, from which it is opened bit for bit.

    ``dtype`` converts floating-point tensors. Raises ``CheckpointError``, also when ``path`` exists
    and ``overwrite`` is not given.
    """
    path = Path(path)
    refuse_file(path, overwrite)
    config = checkpoint.config
    kind = kind_of(config)
    row, record = KINDS.get(kind), dict[str, Any]()
    source = checkpoint.source
    if row is not None and row.stored is not None:
        source = row.stored(source, record)
    record[FILES] = side_files(checkpoint, dtype)
    types = stored_types(source, dtype)
    record[TYPES] = {name: str(type) for name, type in types.items() if type.dtype not in TAGGED}
    shown = dict(config)
    if LABELS in config and isinstance(config[LABELS], dict):
        shown["num_classes"] = len(config[LABELS])
    said = {
        KIND: kind,
        CONFIG: shown,
        EOS: list(eos_token_ids(config, checkpoint.generation_config)),
        RECORD: record,
    }
    written = {name: _in_words(name, type) for name, type in types.items()}
    tensors = ((n, _words(array, written[n])) for n, array in values_of(source, types))
    write_tensors(path, CHECKPOINT, json.dumps(said).encode(), tensors, written)
    return path


# --- elements that the format has not ---


def _in_words(name: str, type: TensorType) -> TensorType:
    """The type itself, or that of its bytes in words."""
    if type.dtype in TAGGED:
        return type
    words, rest = divmod(type.dtype.itemsize, WORD.itemsize)
    if rest:
        listed = ", ".join(map(str, TAGGED))
        raise CheckpointError(
            f"tensor {short(name)} is {type.dtype}; checkpoints of gpt.rs have {listed}, and what"
            f" fills words of {WORD.itemsize} bytes; convert it first"
        )
    return TensorType(WORD, (*type.shape, words))


def _words(array: Array, type: TensorType) -> Array:
    import numpy as np

    if tuple(array.shape) == type.shape:
        return array
    return np.ascontiguousarray(array).reshape(-1).view(type.dtype.numpy).reshape(type.shape)


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
