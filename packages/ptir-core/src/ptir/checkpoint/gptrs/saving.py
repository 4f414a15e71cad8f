"""Models written as gpt.rs's checkpoints (``GPTRSCHK``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint.config import eos_token_ids
from ptir.checkpoint.folder import Checkpoint
from ptir.checkpoint.gptrs.files import write_tensors
from ptir.checkpoint.gptrs.index import CHECKPOINT, TAGS
from ptir.checkpoint.gptrs.names import KINDS, kind_of
from ptir.checkpoint.gptrs.opening import CONFIG, EOS, FILES, KIND, RECORD, TYPES
from ptir.checkpoint.save import file_texts, refuse_file, stored_types, values_of
from ptir.errors import CheckpointError, short
from ptir.params.source import Array
from ptir.types import DTYPES, DType, TensorType

LABELS: Final = "id2label"
TAGGED: Final = tuple(TAGS.values())
WORD: Final = DTYPES["i32"]
"""Of what elements that the format has not are written in."""


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
    record[FILES] = file_texts(checkpoint, dtype)
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
