"""The header of one GGUF file, checked in full before any of it is believed.

Layout (the page on GGUF of https://github.com/ggml-org/ggml): signature, version, two counts,
metadata, one entry a tensor, then the tensors' bytes. The checks are those of llama.cpp's reader,
and that every tensor lies in the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from ptir.checkpoint import foreign
from ptir.checkpoint.gguf.metadata import AGAIN, Cursor, Value, read_metadata
from ptir.checkpoint.gguf.tensor_types import REMOVED, TYPES, GgufType
from ptir.checkpoint.mapped import MappedFile
from ptir.errors import CheckpointError, short
from ptir.params.source import Array

SIGNATURE: Final = b"GGUF"
VERSIONS: Final = (2, 3)
HEADER_BYTES: Final = 24
MAX_KEYS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 16
"""Experts that are stored one by one, three tensors each, are the most that models have."""
MAX_NAME: Final = 63
"""Bytes of a tensor's name."""
MAX_AXES: Final = 4
MOST: Final = (1 << 63) - 1
ALIGNMENT: Final = "general.alignment"
_LEAST_KEY: Final = 8 + 4 + 1
_LEAST_TENSOR: Final = 8 + 4 + 4 + 8
_U32: Final = 4


@dataclass(frozen=True)
class GgufTensor:
    """A tensor: its type, its shape as NumPy orders axes, and where in the file its bytes are."""

    type: GgufType
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return math.prod(self.shape) // self.type.block * self.type.nbytes

    def __str__(self) -> str:
        return f"{self.type.name}[{','.join(map(str, self.shape))}]"


class GgufFile:
    """One mapped GGUF file: its version, its metadata and their types by key, its tensors by name.

    Raises ``CheckpointError``, whatever the file holds, naming the field, its value and the rule.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_beginning(path)
        self._mapped = MappedFile(path)
        cursor = Cursor(path, self._mapped.buffer, len(SIGNATURE))
        self.version = cursor.u32("version")
        tensors = cursor.count("number of tensors", _LEAST_TENSOR, MAX_TENSORS)
        keys = cursor.count("number of keys", _LEAST_KEY, MAX_KEYS)
        self.metadata: Mapping[str, Value]
        self.types: Mapping[str, int]
        self.metadata, self.types = read_metadata(cursor, keys)
        alignment = _alignment(cursor, self.metadata, self.types)
        self.tensors: Mapping[str, GgufTensor] = _tensors(cursor, tensors, alignment)

    def raw(self, name: str) -> Array:
        """The bytes of a tensor, u8[...], read-only; raises ``CheckpointError`` for a cut file."""
        tensor = self.tensors[name]
        return self._mapped.raw(tensor.start, tensor.nbytes, f"tensor {short(name)}")

    def drop_pages(self, name: str) -> None:
        """Give back the memory behind a tensor."""
        tensor = self.tensors[name]
        self._mapped.drop_pages(tensor.start, tensor.nbytes)


def begins_as_gguf(path: Path) -> bool:
    """Whether a regular file has the signature; False for what cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except OSError:
        return False


def _check_beginning(path: Path) -> None:
    """Refuse what is no GGUF file, or one of a version or byte order that is not read."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            _refuse(path, "cannot be read: it is no regular file; give a .gguf file")
        with path.open("rb") as file:
            start = file.read(foreign.SIGNATURE_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not start.startswith(SIGNATURE):
        found = foreign.recognized(start)
        begins = (
            f"begins with {short(start[:4])} and not with {SIGNATURE!r}: it is no GGUF file, or"
            f" {AGAIN}"
        )
        _refuse(path, f"is no GGUF file but {found}" if found else begins)
    if size < HEADER_BYTES:
        _refuse(path, f"{size} bytes; a GGUF file has at least {HEADER_BYTES}; {AGAIN}")
    _check_version(path, start[4:8])


def _check_version(path: Path, raw: bytes) -> None:
    version = int.from_bytes(raw, "little")
    if version in VERSIONS:
        return
    wanted = f"versions {' and '.join(map(str, VERSIONS))}, little-endian, are read"
    if version & 0xFFFF == 0 and version:
        big = int.from_bytes(raw, "big")
        _refuse(path, f"version {big} in big-endian order; {wanted}: fetch the little-endian file")
    if version == 1:
        _refuse(path, f"version 1, whose lengths have 32 bits; {wanted}: fetch a newer file")
    _refuse(path, f"version {version}; {wanted}: convert the model anew, or {AGAIN}")


def _alignment(cursor: Cursor, metadata: Mapping[str, Value], types: Mapping[str, int]) -> int:
    found = metadata.get(ALIGNMENT, 32)
    what = f"key {ALIGNMENT!r}"
    if types.get(ALIGNMENT, _U32) != _U32 or not isinstance(found, int):
        cursor.refuse(what, f"{short(found)} is of type {types[ALIGNMENT]}; it must be u32 (4)")
    if found.bit_count() != 1:
        cursor.refuse(what, f"{found} is not a power of two, which it must be; {AGAIN}")
    return found


def _tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    """The tensors' entries, and that they lie one behind the other, padded, in the file."""
    entries: dict[str, tuple[GgufType, tuple[int, ...], int]] = {}
    for number in range(count):
        name = cursor.text(f"name of tensor {number}", MAX_NAME)
        what = f"tensor {short(name)}"
        if name in entries:
            cursor.refuse(what, f"stands there twice; names must be unique; {AGAIN}")
        shape = _shape(cursor, what)
        type_ = _type(cursor, what, shape)
        entries[name] = type_, shape, cursor.u64(f"{what}: offset")
    start, position = padded(cursor.at, alignment), 0
    found: dict[str, GgufTensor] = {}
    for name, (type_, shape, offset) in entries.items():
        tensor = GgufTensor(type_, shape, start + offset)
        _check_place(cursor, name, tensor, offset, position)
        position = padded(offset + tensor.nbytes, alignment)
        found[name] = tensor
    return found


def _check_place(cursor: Cursor, name: str, tensor: GgufTensor, offset: int, position: int) -> None:
    what = f"tensor {short(name)}"
    if offset != position:
        how = "overlaps the one before" if offset < position else "leaves a hole before it"
        rule = f"offset {offset} {how}; tensors must follow each other, which is at {position}"
        cursor.refuse(what, f"{rule}; {AGAIN}")
    end, size = tensor.start + tensor.nbytes, len(cursor.buffer)
    if end > size:
        cursor.refuse(what, f"{tensor} ends at byte {end} of a file of {size}; {AGAIN}")


def _shape(cursor: Cursor, what: str) -> tuple[int, ...]:
    axes = cursor.u32(f"{what}: number of axes")
    if axes > MAX_AXES:
        cursor.refuse(what, f"{axes} axes; at most {MAX_AXES} may be; {AGAIN}")
    sizes = [cursor.u64(f"{what}: size of axis {axis}") for axis in range(axes)]
    if max(sizes, default=0) > MOST or math.prod(size for size in sizes if size) >= MOST:
        cursor.refuse(what, f"sizes {sizes} are of more than 2^63 - 2 elements; {AGAIN}")
    return tuple(reversed(sizes))


def _type(cursor: Cursor, what: str, shape: tuple[int, ...]) -> GgufType:
    number = cursor.u32(f"{what}: type")
    if number in REMOVED:
        cursor.refuse(
            what,
            f"type {number} ({REMOVED[number]}) was removed from GGUF; quantize the model anew, or"
            " fetch a newer file",
        )
    found = TYPES.get(number)
    if found is None:
        known = f"0 to {max(TYPES)} without {', '.join(map(str, _gaps()))}"
        cursor.refuse(what, f"type {number} is not known; known are {known}; {AGAIN}")
    row = shape[-1] if shape else 1
    if row % found.block:
        rule = f"rows of {row} elements are not whole blocks of {found.block}, as {found.name} has"
        cursor.refuse(what, f"{rule}; {AGAIN}")
    return found


def _gaps() -> list[int]:
    return [number for number in range(max(TYPES)) if number not in TYPES]


def padded(position: int, alignment: int) -> int:
    """The next multiple of ``alignment``."""
    return -(-position // alignment) * alignment


def _refuse(path: Path, rule: str) -> NoReturn:
    raise CheckpointError(f"{path}: {rule}")
