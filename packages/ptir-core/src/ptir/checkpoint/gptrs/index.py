"""The index of gpt.rs's two file formats: named tensors behind a magic and a version.

``GPTRSCHK`` (a model: configuration, then tensors) and ``GPTRSTEN`` (tensors alone), version 2,
little-endian. Both end in an index, u32 count and an entry for each tensor, and the tensors' bytes
(the page of formats in gpt.rs's documentation). Headers are untrusted input.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from ptir.checkpoint.safetensors_file import Header, TensorEntry
from ptir.errors import CheckpointError, short
from ptir.types import DTYPES, DType, TensorType

CHECKPOINT: Final = b"GPTRSCHK"
ARCHIVE: Final = b"GPTRSTEN"
VERSION: Final = 2
TAGS: Final[Mapping[int, DType]] = {
    tag: DTYPES[name] for tag, name in enumerate(("f32", "f16", "bf16", "i32"))
}
ALIGNMENT: Final = 64
"""Bytes at whose multiples tensors begin, as gpt.rs writes them."""
ID_BYTES: Final = 16
"""Of a tensor's base id in a checkpoint; zeros where the name alone tells it."""
_MAX_RANK: Final = 32
_MAX_SIZE: Final = (1 << 63) - 1
_MAX_NAME: Final = 1 << 16
_U32: Final = struct.Struct("<I")
_TAIL: Final = struct.Struct("<IBQQ")
"""Of an entry: dtype, a reserved byte, offset in the file, bytes."""


@dataclass(frozen=True)
class Preamble:
    """What a file has before its tensors: the configuration's text, and the checked index."""

    config: bytes
    header: Header


def begins_as(path: Path, magic: bytes) -> bool:
    """Whether a regular file begins with ``magic``."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_preamble(path: Path, magic: bytes) -> Preamble:
    """Read and check all that a file has before its tensors.

    Raises ``CheckpointError`` naming what is wrong.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            start = file.read(len(magic) + _U32.size)
            if start[: len(magic)] != magic:
                _refuse(path, f"begins with {start[:8]!r}, not {magic!r}")
            version = _u32(path, start, len(magic), "version")
            if version != VERSION:
                _refuse(path, f"version {version} of {magic.decode()}; {VERSION} is read")
            parts = []
            for part in ("configuration", "index") if magic == CHECKPOINT else ("index",):
                length = _u32(path, file.read(_U32.size), 0, f"length of the {part}")
                if length > size - file.tell():
                    rest = size - file.tell()
                    _refuse(path, f"{part} of {length} bytes where {rest} follow; it is cut")
                parts.append(file.read(length))
            *configs, index = parts
            entries = _Entries(path, magic, index, file.tell(), size).read()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    return Preamble(b"".join(configs), Header(entries, {}, 0))


class _Entries:
    """The entries of an index, read one after the other."""

    def __init__(self, path: Path, magic: bytes, index: bytes, data: int, size: int) -> None:
        self._path, self._index, self._at = path, index, 0
        self._ids = ID_BYTES if magic == CHECKPOINT else 0
        self._data, self._size = data, size

    def read(self) -> dict[str, TensorEntry]:
        """The checked entries by name, in order."""
        found: dict[str, TensorEntry] = {}
        for _ in range(self._number("count of tensors")):
            name, entry = self._entry()
            if name in found:
                _refuse(self._path, f"tensor {short(name)} is there twice; keep one of them")
            found[name] = entry
        if self._at != len(self._index):
            rest = len(self._index) - self._at
            _refuse(self._path, f"{rest} bytes behind the last entry of the index")
        self._check_spans(found)
        return found

    def _entry(self) -> tuple[str, TensorEntry]:
        name = self._name()
        self._take(self._ids, "base id")  # what the name already tells
        rank = self._number("rank")
        if rank > _MAX_RANK:
            self._refuse(name, f"rank {rank}; at most {_MAX_RANK}")
        shape = struct.unpack(f"<{rank}Q", self._take(8 * rank, "shape"))
        tag, _, offset, length = _TAIL.unpack(self._take(_TAIL.size, "entry"))
        if tag not in TAGS:
            listed = ", ".join(f"{tag} {dtype}" for tag, dtype in TAGS.items())
            self._refuse(name, f"dtype {tag}; known are {listed}")
        dtype = TAGS[tag]
        if math.prod(side or 1 for side in shape) * dtype.itemsize > _MAX_SIZE:
            self._refuse(name, f"shape {short(list(shape))} overflows 2^63-1 bytes")
        type = TensorType(dtype, shape)
        if length != type.nbytes:
            self._refuse(name, f"{length} bytes for {type}, which has {type.nbytes}")
        if offset < self._data or offset + length > self._size:
            span = f"bytes {offset}..{offset + length}"
            self._refuse(name, f"{span} leave {self._data}..{self._size}, those of tensors")
        return name, TensorEntry(type, offset, offset + length)

    def _name(self) -> str:
        length = self._number("length of a name")
        if length > _MAX_NAME:
            _refuse(self._path, f"a name of {length} bytes; at most {_MAX_NAME}")
        text = self._take(length, "name")
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self._path}: the name {text[:40]!r} is no UTF-8") from error

    def _check_spans(self, entries: Mapping[str, TensorEntry]) -> None:
        """Two tensors are one span, as tied weights are, or share no byte."""
        last, before = "", (0, 0)
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            span = entry.begin, entry.end
            if entry.begin < before[1] and span != before:
                theirs = f"those of tensor {short(last)}, {before[0]}..{before[1]}"
                self._refuse(name, f"bytes {span[0]}..{span[1]} overlap {theirs}")
            last, before = name, span

    def _number(self, what: str) -> int:
        return _u32(self._path, self._take(_U32.size, what), 0, what)

    def _take(self, count: int, what: str) -> bytes:
        found = self._index[self._at : self._at + count]
        if len(found) < count:
            _refuse(self._path, f"the index ends within a {what}; it is cut or damaged")
        self._at += count
        return found

    def _refuse(self, name: str, rule: str) -> NoReturn:
        _refuse(self._path, f"tensor {short(name)}: {rule}")


def preamble(
    path: Path, magic: bytes, config: bytes, types: Mapping[str, TensorType]
) -> tuple[bytes, dict[str, int]]:
    """What comes before tensors of these types, and where each begins in the file.

    Raises ``CheckpointError`` for element types that the format has not.
    """
    tags = {dtype: tag for tag, dtype in TAGS.items()}
    heads, tails = [], []
    for name, type in types.items():
        if type.dtype not in tags:
            listed = ", ".join(map(str, tags))
            _refuse(path, f"tensor {short(name)} is {type.dtype}; {magic.decode()} has {listed}")
        text = name.encode("utf-8")
        ids = bytes(ID_BYTES) if magic == CHECKPOINT else b""
        sides = struct.pack(f"<I{len(type.shape)}Q", len(type.shape), *type.shape)
        heads.append(_U32.pack(len(text)) + text + ids + sides)
        tails.append((tags[type.dtype], type.nbytes))
    length = _U32.size + sum(len(head) + _TAIL.size for head in heads)
    front = magic + _U32.pack(VERSION)
    if magic == CHECKPOINT:
        front += _U32.pack(len(config)) + config
    front += _U32.pack(length) + _U32.pack(len(heads))
    position, starts = len(front) + length - _U32.size, []
    for _, nbytes in tails:
        position += -position % ALIGNMENT
        starts.append(position)
        position += nbytes
    index = b"".join(
        head + _TAIL.pack(tag, 0, start, nbytes)
        for head, (tag, nbytes), start in zip(heads, tails, starts, strict=True)
    )
    return front + index, dict(zip(types, starts, strict=True))


def _u32(path: Path, text: bytes, at: int, what: str) -> int:
    if len(text) < at + _U32.size:
        _refuse(path, f"ends within its {what}; it is cut")
    return int(_U32.unpack_from(text, at)[0])


def _refuse(path: Path, rule: str) -> NoReturn:
    raise CheckpointError(f"{path}: {rule}")
