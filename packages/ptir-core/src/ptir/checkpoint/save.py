"""Save checkpoints, whole or not at all: as a Hugging Face folder or one self-describing file."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint.config import QUANTIZED, with_dtype
from ptir.checkpoint.folder import (
    CHAT_TEMPLATE,
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    MERGES,
    PREPROCESSOR_CONFIG,
    SENTENCE_FILES,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCAB,
    WEIGHTS,
    WORDS,
    BpeFiles,
    Checkpoint,
    DescribedTokenizer,
    WordFile,
)
from ptir.checkpoint.safetensors_write import write_safetensors
from ptir.checkpoint.sentence import (
    DENSE_TENSORS,
    LENGTHS,
    MODULES,
    PROMPTS,
    dense_folders,
    dense_names,
)
from ptir.errors import CheckpointError
from ptir.params.source import Array, ParamSource, RenamedSource
from ptir.types import DType, TensorType

#: Shards of a folder hold at most this many bytes of tensors, unless one tensor is larger.
MAX_SHARD_BYTES: Final = 5_000_000_000
_FORMAT: Final = {"format": "pt"}
EXISTS: Final = "exists already; give another name, or overwrite it (--overwrite, overwrite=True)"
_REPLACEABLE: Final = (
    *(CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG, CHAT_TEMPLATE, TOKENIZER, VOCAB, MERGES, INDEX),
    PREPROCESSOR_CONFIG,
    *("model*.safetensors", "special_tokens_map.json", "added_tokens.json"),
    *(WORDS, MODULES, PROMPTS, LENGTHS, "[1-9]_*"),
)


def save_folder(
    checkpoint: Checkpoint,
    path: str | Path,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    dtype: DType | None = None,
    overwrite: bool = False,
    quantization: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``checkpoint`` as a Hugging Face folder, in shards with an index when it is larger.

    ``dtype`` converts floating-point tensors; ``quantization`` becomes the configuration's
    ``quantization_config``, where the source has weights as that says. An existing folder is only
    replaced with ``overwrite`` and only if it holds nothing but checkpoint files. Raises
    ``CheckpointError``; what was at ``path`` is then still there.
    """
    path = Path(path).resolve()
    refuse_existing(path, overwrite)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        part.mkdir(parents=True)
        try:
            _write_folder(checkpoint, part, max_shard_bytes, dtype, quantization)
            _put_in_place(part, path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def save_single_file(
    checkpoint: Checkpoint,
    path: str | Path,
    *,
    dtype: DType | None = None,
    overwrite: bool = False,
) -> Path:
    """Write ``checkpoint`` as one safetensors file with its JSON files as metadata.

    ``dtype`` converts floating-point tensors. Raises ``CheckpointError``, also when ``path`` exists
    and ``overwrite`` is not given.
    """
    path = Path(path)
    refuse_file(path, overwrite)
    source = checkpoint.source
    types = stored_types(source, dtype)
    metadata = {**_FORMAT, **file_texts(checkpoint, dtype)}
    write_safetensors(path, values_of(source, types), types, metadata)
    return path


def file_texts(checkpoint: Checkpoint, dtype: DType | None) -> dict[str, str]:
    """The texts that one file holds beside the weights, of which a folder is made again."""
    texts = side_files(checkpoint, dtype)
    if checkpoint.sentence_files:
        texts[SENTENCE_FILES] = _json(dict(checkpoint.sentence_files))
    return texts


def _write_folder(
    checkpoint: Checkpoint,
    folder: Path,
    max_shard_bytes: int,
    dtype: DType | None,
    quantization: Mapping[str, Any] | None,
) -> None:
    types = stored_types(checkpoint.source, dtype)
    for number, place in enumerate(dense_folders(checkpoint.sentence_files)):
        _write_dense(checkpoint.source, types, folder / place, number)
    shards = _shards(types, max_shard_bytes)
    for name, part in shards.items():
        write_safetensors(folder / name, values_of(checkpoint.source, part), part, _FORMAT)
    files = side_files(checkpoint, dtype, quantization) | dict(checkpoint.sentence_files)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode("utf-8"))
    if len(shards) > 1:
        (folder / INDEX).write_bytes(_index(shards).encode("utf-8"))


def _write_dense(
    source: ParamSource, types: dict[str, TensorType], folder: Path, number: int
) -> None:
    """Write a projection of a sentence-transformers folder, and take it from ``types``."""
    theirs = dense_names(number, DENSE_TENSORS, folder)
    own = {theirs[name]: types.pop(name) for name in [*types] if name in theirs}
    folder.mkdir()
    renamed = RenamedSource(
        source, {theirs[name]: name for name in theirs if name in source.names()}
    )
    write_safetensors(folder / WEIGHTS, values_of(renamed, own), own, _FORMAT)


def _shards(types: Mapping[str, TensorType], limit: int) -> dict[str, dict[str, TensorType]]:
    """Tensors in order, split into files whenever the next one would pass ``limit`` bytes."""
    groups: list[dict[str, TensorType]] = [{}]
    filled = 0
    for name, type_ in types.items():
        if groups[-1] and filled + type_.nbytes > limit:
            groups.append({})
            filled = 0
        groups[-1][name] = type_
        filled += type_.nbytes
    count = len(groups)
    if count == 1:
        return {WEIGHTS: groups[0]}
    return {f"model-{i:05}-of-{count:05}.safetensors": group for i, group in enumerate(groups, 1)}


def _index(shards: Mapping[str, Mapping[str, TensorType]]) -> str:
    total = sum(type_.nbytes for part in shards.values() for type_ in part.values())
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    return _json({"metadata": {"total_size": total}, "weight_map": weight_map})


def side_files(
    checkpoint: Checkpoint, dtype: DType | None, quantization: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """The texts beside the weights, by the names of their files."""
    config = with_dtype(checkpoint.config, dtype) if dtype else dict(checkpoint.config)
    config = {key: value for key, value in config.items() if key not in QUANTIZED}  # all is floats
    if quantization is not None:
        config["quantization_config"] = dict(quantization)
    files = {CONFIG: _json(config)}
    if checkpoint.generation_config:
        files[GENERATION_CONFIG] = _json(dict(checkpoint.generation_config))
    if checkpoint.tokenizer_config:
        files[TOKENIZER_CONFIG] = _json(dict(checkpoint.tokenizer_config))
    if checkpoint.preprocessor_config:
        files[PREPROCESSOR_CONFIG] = _json(dict(checkpoint.preprocessor_config))
    held = checkpoint.tokenizer
    match held.beside if isinstance(held, DescribedTokenizer) else held:
        case BpeFiles(vocab, merges):
            files |= {VOCAB: vocab, MERGES: merges}
        case WordFile(vocab):
            files[WORDS] = vocab
        case str(text):
            files[TOKENIZER] = text
    return files


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def stored_types(source: ParamSource, dtype: DType | None) -> dict[str, TensorType]:
    """The types that tensors are written in: floats in ``dtype``, where it is given."""
    types = {name: source.type(name) for name in source.names()}
    if dtype is None:
        return types
    if not dtype.is_float:
        raise CheckpointError(f"weights cannot be converted to {dtype}: it is not a float type")
    return {n: t.with_dtype(dtype) if t.dtype.is_float else t for n, t in types.items()}


def values_of(source: ParamSource, types: Mapping[str, TensorType]) -> Iterator[tuple[str, Array]]:
    """The values of each tensor in its type, released when the next one is asked for."""
    for name, type_ in types.items():
        yield name, converted(name, source.read(name), type_.dtype)
        source.release(name)


def converted(name: str, values: Array, dtype: DType) -> Array:
    """``values`` in a type; raises ``CheckpointError`` where a number becomes infinite."""
    import numpy as np

    if values.dtype == dtype.numpy:
        return values
    with np.errstate(over="ignore"):
        result = values.astype(dtype.numpy)
    lost = np.isfinite(values) & ~np.isfinite(result)
    if lost.any():
        worst = values[lost].reshape(-1)[0]
        raise CheckpointError(f"tensor {name!r}: {worst} does not fit {dtype}; choose a wider type")
    return result


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise ``CheckpointError`` unless a folder may be written at ``path``."""
    if not path.exists():
        return
    if not path.is_dir():
        raise CheckpointError(f"{path}: is a file; give the name of a folder")
    held = sorted(entry.name for entry in path.iterdir())
    if held and not overwrite:
        raise CheckpointError(f"{path}: {EXISTS}")
    others = [n for n in held if not any(fnmatchcase(n, pattern) for pattern in _REPLACEABLE)]
    if others:
        raise CheckpointError(
            f"{path}: holds {others[0]!r}, which is no checkpoint file and would be lost; "
            "move it or give another name"
        )


def refuse_file(path: Path, overwrite: bool) -> None:
    """Raise ``CheckpointError`` unless a file may be written at ``path``."""
    if path.is_dir() or (path.exists() and not overwrite):
        raise CheckpointError(f"{path}: {EXISTS}")


def _put_in_place(part: Path, path: Path) -> None:
    """Swap folders by renaming; the old one comes back if the new one cannot take its place."""
    if not path.exists():
        part.rename(path)
        return
    old = part.with_suffix(".old")
    path.rename(old)
    try:
        part.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)
