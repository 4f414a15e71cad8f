"""Write GGUF files one tensor after the other, whole or not at all; read back by ``header.py``.

A value's type in the file is its type in Python: NumPy's numbers and arrays have one each; ``int``
becomes u32, ``float`` f32, ``bool`` and ``str`` what they are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from ptir.checkpoint.gguf.header import (
    ALIGNMENT,
    MAX_AXES,
    MAX_NAME,
    SIGNATURE,
    VERSIONS,
    GgufTensor,
    padded,
)
from ptir.checkpoint.gguf.metadata import ARRAY, BOOL, MAX_KEY, NUMBERS, STRING
from ptir.checkpoint.gguf.tensor_types import TYPES
from ptir.checkpoint.safetensors_write import replacing
from ptir.errors import CheckpointError, short
from ptir.params.source import Array

DEFAULT_ALIGNMENT: Final = 32
TYPE_IDS: Final[Mapping[str, int]] = {one.name: number for number, one in TYPES.items()}
"""The ids of tensors' types by name."""
_CODES: Final = {row[2][1:]: number for number, row in NUMBERS.items() if number != BOOL}
_NUMBER: Final = {int: 4, float: 6}
"""The types of values that are plain Python numbers."""


@dataclass(frozen=True)
class Outgoing:
    """A tensor to be written: its name, type and shape as NumPy orders axes, and its values.

    ``chunks`` is called when the tensor's turn comes and gives its elements, or the bytes of its
    blocks, in order, in arrays of any sizes: a large tensor need never be in memory whole.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[Array]]


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[Outgoing],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
) -> None:
    """Write one file of version 3; replaces ``path``, which stays as it was when writing fails.

    Raises ``CheckpointError`` for keys, values, names, types and shapes that no reader takes, for
    a tensor whose chunks are not as many bytes as its shape says, and for what cannot be written.
    """
    path = Path(path)
    if alignment.bit_count() != 1:
        _refuse(path, f"alignment {alignment} must be a power of two")
    keys = dict(metadata)
    if alignment != DEFAULT_ALIGNMENT:
        keys[ALIGNMENT] = alignment
    header = _header(path, keys, tensors, alignment)
    with replacing(path) as file:
        file.write(header)
        for tensor in tensors:
            for piece in _exactly(path, tensor):
                file.write(piece)
            file.write(bytes(_gap(nbytes_of(tensor), alignment)))


def sized(value: Any) -> Any:
    """A value as it is written: whole numbers that u32 does not hold get a type."""
    if type(value) is not int or 0 <= value < 1 << 32:
        return value
    import numpy as np

    return np.int64(value) if value < 0 else np.uint64(value)


def nbytes_of(tensor: Outgoing) -> int:
    """Bytes of a tensor without padding."""
    return GgufTensor(TYPES[TYPE_IDS[tensor.type]], tensor.shape, 0).nbytes


def _gap(nbytes: int, alignment: int) -> int:
    return padded(nbytes, alignment) - nbytes


def _exactly(path: Path, tensor: Outgoing) -> Iterator[memoryview]:
    """The little-endian bytes of a tensor's chunks, which must be as many as were announced."""
    import numpy as np

    wanted, found = nbytes_of(tensor), 0
    for chunk in tensor.chunks():
        little = np.ascontiguousarray(chunk.astype(chunk.dtype.newbyteorder("<"), copy=False))
        found += little.nbytes
        if found > wanted:
            break
        yield little.reshape(-1).view(np.uint8).data
    if found != wanted:
        much = "more" if found > wanted else f"{found}"
        what = f"{tensor.type}{list(tensor.shape)}"
        _refuse(path, f"tensor {short(tensor.name)}: {what} has {wanted} bytes and {much} came")


def _header(
    path: Path, metadata: Mapping[str, Any], tensors: Sequence[Outgoing], alignment: int
) -> bytes:
    parts = [SIGNATURE, _u32(VERSIONS[-1]), _u64(len(tensors)), _u64(len(metadata))]
    for key, value in metadata.items():
        size = len(key.encode())
        if not 0 < size <= MAX_KEY:
            _refuse(path, f"key {short(key)}: {size} bytes; 1 to {MAX_KEY} may be")
        parts += [_text(key), _value(path, key, value)]
    parts += _entries(path, tensors, alignment)
    header = b"".join(parts)
    return header + bytes(_gap(len(header), alignment))


def _entries(path: Path, tensors: Sequence[Outgoing], alignment: int) -> Iterator[bytes]:
    position, names = 0, set[str]()
    for tensor in tensors:
        _check(path, tensor, names)
        names.add(tensor.name)
        axes = b"".join(_u64(size) for size in reversed(tensor.shape))
        yield _text(tensor.name) + _u32(len(tensor.shape)) + axes
        yield _u32(TYPE_IDS[tensor.type]) + _u64(position)
        position += padded(nbytes_of(tensor), alignment)


def _check(path: Path, tensor: Outgoing, before: set[str]) -> None:
    what = f"tensor {short(tensor.name)}"
    if tensor.name in before:
        _refuse(path, f"{what}: stands there twice; names must be unique")
    size = len(tensor.name.encode())
    if not 0 < size <= MAX_NAME:
        _refuse(path, f"{what}: a name of {size} bytes; 1 to {MAX_NAME} may be: rename it")
    if tensor.type not in TYPE_IDS:
        _refuse(path, f"{what}: type {tensor.type!r} is none of GGUF's: {', '.join(TYPE_IDS)}")
    if len(tensor.shape) > MAX_AXES:
        _refuse(path, f"{what}: {len(tensor.shape)} axes; at most {MAX_AXES} may be")
    block, row = TYPES[TYPE_IDS[tensor.type]].block, (tensor.shape or (1,))[-1]
    if row % block:
        rule = f"rows of {row} are not whole blocks of {block}, as {tensor.type} has"
        _refuse(path, f"{what}: {rule}; choose another type")


def _value(path: Path, key: str, value: Any) -> bytes:
    """A value behind its type."""
    if isinstance(value, str):
        return _u32(STRING) + _text(value)
    if isinstance(value, bool):
        return _u32(BOOL) + bytes([value])
    if hasattr(value, "dtype") and value.ndim == 0:
        kind = _kind(path, key, value.dtype)
        return _u32(kind) + bytes(value.astype(NUMBERS[kind][2]).tobytes())
    if type(value) in _NUMBER:
        return _number(path, key, value)
    return _u32(ARRAY) + _array(path, key, value)


def _number(path: Path, key: str, value: float) -> bytes:
    kind = _NUMBER[type(value)]
    try:
        return _u32(kind) + NUMBERS[kind][1].pack(value)
    except (struct.error, OverflowError) as error:
        rule = f"{short(value)} does not fit {NUMBERS[kind][0]}; give a number of NumPy's"
        raise CheckpointError(f"{path}: key {short(key)}: {rule}") from error


def _array(path: Path, key: str, value: Any) -> bytes:
    """An array behind the type of its elements and their number."""
    if not hasattr(value, "dtype"):
        texts = list(value) if isinstance(value, Sequence) else None
        if texts is None or not all(isinstance(one, str) for one in texts):
            rule = "must be a number, a text, texts, or an array of NumPy's"
            _refuse(path, f"key {short(key)}: {short(value)}: {rule}")
        return _u32(STRING) + _u64(len(texts)) + b"".join(map(_text, texts))
    if value.ndim != 1:
        _refuse(path, f"key {short(key)}: {value.ndim} axes; arrays have one")
    kind = _kind(path, key, value.dtype)
    raw = bytes(value.astype(NUMBERS[kind][2]).tobytes())
    return _u32(kind) + _u64(math.prod(value.shape)) + raw


def _kind(path: Path, key: str, dtype: Any) -> int:
    """The type of values that NumPy's ``dtype`` is."""
    if dtype.kind == "b":
        return BOOL
    name = f"{dtype.kind}{dtype.itemsize}"
    if name not in _CODES:
        rule = f"elements are {dtype}; {', '.join(_CODES)} and bool may be"
        _refuse(path, f"key {short(key)}: {rule}")
    return _CODES[name]


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return _u64(len(raw)) + raw


def _refuse(path: Path, rule: str) -> NoReturn:
    raise CheckpointError(f"{path}: {rule}")
