"""Write safetensors files one tensor at a time, atomically: a reader sees the old file or the new.

The library's writer wants all tensors in memory at once, hence our own.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from ptir.checkpoint.safetensors_file import (
    HEADER_DTYPES,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    METADATA_KEY,
)
from ptir.errors import CheckpointError
from ptir.params.source import Array
from ptir.types import TensorType, dtype_of

_HEADER_NAMES: Final = {dtype: name for name, dtype in HEADER_DTYPES.items()}


def write_safetensors(
    path: str | Path,
    tensors: Iterable[tuple[str, Array]],
    types: Mapping[str, TensorType],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write ``tensors``, which must be exactly those of ``types``, in any order; replaces ``path``.

    Only one tensor is held at a time. Raises ``CheckpointError`` when a tensor is missing, unknown
    or of another type, or the file cannot be written; ``path`` is then as it was before.
    """
    path = Path(path)
    spans = _layout(types)
    header = _header(path, spans, types, metadata or {})
    with replacing(path) as file:
        file.write(header)
        missing = set(types)
        for name, array in tensors:
            _check(path, name, array, types, missing)
            missing.discard(name)
            file.seek(len(header) + spans[name][0])
            file.write(little_endian_bytes(array))
        if missing:
            raise CheckpointError(f"{path}: no values came for {_first(missing)}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when the block ends, and vanishes if it fails.

    What is no regular file (a device, a folder) is never replaced.
    """
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path}: cannot be written: it is not a regular file")
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        file = part.open("xb")
        with _removed_at_end(part):
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def _removed_at_end(part: Path) -> Iterator[None]:
    try:
        yield
    finally:
        part.unlink(missing_ok=True)


def _layout(types: Mapping[str, TensorType]) -> dict[str, tuple[int, int]]:
    """Byte ranges by name, in the order of ``types``; wide elements first, so all are aligned."""
    ends: dict[str, tuple[int, int]] = {}
    position = 0
    for name in sorted(types, key=lambda name: -types[name].dtype.itemsize):
        ends[name] = (position, position + types[name].nbytes)
        position = ends[name][1]
    return {name: ends[name] for name in types}


def _header(
    path: Path,
    spans: Mapping[str, tuple[int, int]],
    types: Mapping[str, TensorType],
    metadata: Mapping[str, str],
) -> bytes:
    fields: dict[str, Any] = {METADATA_KEY: dict(metadata)} if metadata else {}
    for name, span in spans.items():
        if name == METADATA_KEY:
            raise CheckpointError(f"{path}: a tensor cannot be called {name!r}; rename it")
        type_ = types[name]
        dtype, shape = _HEADER_NAMES[type_.dtype], list(type_.shape)
        fields[name] = {"dtype": dtype, "shape": shape, "data_offsets": list(span)}
    return _packed(path, fields)


def _packed(path: Path, fields: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError as error:
        bad = error.object[error.start : error.end]
        raise CheckpointError(f"{path}: names and metadata must be Unicode, not {bad!r}") from error
    text += b" " * (-len(text) % LENGTH_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path}: header of {len(text)} bytes; limit {MAX_HEADER_BYTES}")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _check(
    path: Path, name: str, array: Array, types: Mapping[str, TensorType], missing: set[str]
) -> None:
    if name not in missing:
        why = "was written already" if name in types else "was not announced"
        raise CheckpointError(f"{path}: tensor {name!r} {why}")
    found = TensorType(dtype_of(array), tuple(array.shape))
    if found != types[name]:
        raise CheckpointError(f"{path}: tensor {name!r} is {found}, announced as {types[name]}")


def little_endian_bytes(array: Array) -> memoryview:
    """The bytes of an array as files have them."""
    import numpy as np

    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return little.reshape(-1).view(np.uint8).data


def _first(names: Iterable[str], count: int = 5) -> str:
    ordered = sorted(names)
    shown = ", ".join(map(repr, ordered[:count]))
    return shown if len(ordered) <= count else f"{shown} and {len(ordered) - count} more"
