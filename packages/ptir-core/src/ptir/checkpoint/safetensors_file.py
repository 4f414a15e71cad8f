"""Read safetensors files: a header checked in full before it is believed, and mapped tensors.

Format: 8 bytes little-endian header length, a JSON object, then the tensors' bytes without holes
(https://github.com/huggingface/safetensors#format). Headers are untrusted input.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeGuard

from ptir.checkpoint import foreign
from ptir.checkpoint.json_text import parse_json_object
from ptir.checkpoint.mapped import MappedFile
from ptir.errors import CheckpointError, short, unknown_name
from ptir.params.source import Array, Counters, lookup
from ptir.types import DTYPES, DType, TensorType

#: PTIR element type of every dtype a header may name.
HEADER_DTYPES: Final[Mapping[str, DType]] = {
    "BOOL": DTYPES["bool"],
    "I8": DTYPES["i8"],
    "I16": DTYPES["i16"],
    "I32": DTYPES["i32"],
    "I64": DTYPES["i64"],
    "U8": DTYPES["u8"],
    "U16": DTYPES["u16"],
    "U32": DTYPES["u32"],
    "U64": DTYPES["u64"],
    "F16": DTYPES["f16"],
    "BF16": DTYPES["bf16"],
    "F32": DTYPES["f32"],
    "F64": DTYPES["f64"],
    "F8_E4M3": DTYPES["f8e4m3fn"],
    "F8_E5M2": DTYPES["f8e5m2"],
}
METADATA_KEY: Final = "__metadata__"
LENGTH_BYTES: Final = 8
AGAIN: Final = "the file is cut or damaged: fetch it again"
MAX_HEADER_BYTES: Final = 100_000_000
_MAX_RANK: Final = 32
_MAX_BYTES: Final = (1 << 63) - 1
_ENTRY_KEYS: Final = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: its type, and the half-open byte range after the header."""

    type: TensorType
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A checked header: entries by name in header order, string metadata, start of the data."""

    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data_start: int


def read_header(path: str | Path) -> Header:
    """The checked header of a safetensors file.

    Raises ``CheckpointError`` naming what is wrong, or what the file is where it is another kind.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            _refuse(path, "cannot be read: it is no regular file; give a .safetensors file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = _header_length(path, file.read(foreign.SIGNATURE_BYTES), size)
            file.seek(LENGTH_BYTES)
            return parse_header(path, file.read(length), size - LENGTH_BYTES - length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse_header(path: Path, text: bytes, data_bytes: int) -> Header:
    """The header in ``text`` of a file with ``data_bytes`` bytes after it."""
    if not text.startswith(b"{"):
        _refuse(path, f"header starts with {text[:1]!r}; it must start with '{{'")
    fields = parse_json_object(text, f"{path}: header")
    metadata = _metadata(path, fields.pop(METADATA_KEY, {}))
    entries = {name: _entry(path, name, value) for name, value in fields.items()}
    _check_layout(path, entries, data_bytes)
    return Header(entries, metadata, LENGTH_BYTES + len(text))


class MappedSource:
    """The tensors of one or more safetensors files, mapped: reading copies nothing.

    ``where`` maps a tensor's name to its file; without it, every tensor of every file is offered.
    An array read keeps the mapping alive. Tensors whose bytes are not aligned to their element
    size are copied. Raises ``CheckpointError`` for files that cannot be read or do not agree, and
    when a tensor is read from a file that was cut since. A file that is cut later, while its
    arrays are in use, cannot be noticed: the system ends the process (SIGBUS). Replace weights by
    renaming a new file over the old one, never by writing into it.
    """

    def __init__(self, paths: Sequence[Path], where: Mapping[str, Path] | None = None) -> None:
        self.counters = Counters()
        files = {path: _TensorFile(path) for path in paths}
        self._file_of = _chosen(files, where) if where is not None else _every(files)

    @classmethod
    def of(cls, path: Path, header: Header) -> MappedSource:
        """The tensors that a header finds in a file of another format."""
        source = cls([])
        source._file_of = dict.fromkeys(header.entries, _TensorFile(path, header))
        return source

    def names(self) -> tuple[str, ...]:
        """All names: files in the order given, tensors in header order."""
        return tuple(self._file_of)

    def type(self, name: str) -> TensorType:
        """Stored element type and shape."""
        return lookup(self._file_of, name).header.entries[name].type

    def read(self, name: str) -> Array:
        """A read-only array over the mapped bytes."""
        array = lookup(self._file_of, name).array(name)
        self.counters.record(name, array.nbytes)
        return array

    def release(self, name: str) -> None:
        """Drop the tensor's pages from memory; they are read from the file again when touched."""
        lookup(self._file_of, name).drop_pages(name)


class _TensorFile:
    """One mapped file and its checked header."""

    def __init__(self, path: Path, header: Header | None = None) -> None:
        self.path = path
        self.header = read_header(path) if header is None else header
        self._mapped = MappedFile(path)
        last = max((entry.end for entry in self.header.entries.values()), default=0)
        if self.header.data_start + last > len(self._mapped):
            _refuse(path, "changed while it was opened; open it again")

    def array(self, name: str) -> Array:
        entry = self.header.entries[name]
        stored = entry.type.dtype
        raw = self._mapped.raw(*self._span(entry), f"tensor {short(name)}")
        if stored.name == "bool" and raw.size and raw.max() > 1:
            _refuse_tensor(self.path, name, f"bool byte {raw.max()}; bytes must be 0 or 1")
        values = raw.view(stored.numpy).reshape(entry.type.shape)
        if not values.flags.aligned:
            values = values.copy()
        values.setflags(write=False)
        return values

    def drop_pages(self, name: str) -> None:
        self._mapped.drop_pages(*self._span(self.header.entries[name]))

    def _span(self, entry: TensorEntry) -> tuple[int, int]:
        return self.header.data_start + entry.begin, entry.end - entry.begin


def _every(files: Mapping[Path, _TensorFile]) -> dict[str, _TensorFile]:
    found: dict[str, _TensorFile] = {}
    for path, file in files.items():
        for name in file.header.entries:
            if name in found:
                _refuse_tensor(path, name, f"also stored in {found[name].path}; keep one of them")
            found[name] = file
    return found


def _chosen(files: Mapping[Path, _TensorFile], where: Mapping[str, Path]) -> dict[str, _TensorFile]:
    lost = [f"{n!r} in {p.name}" for n, p in where.items() if n not in files[p].header.entries]
    if lost:
        folder = next(iter(files)).parent
        raise CheckpointError(
            f"{folder}: {len(lost)} tensors of the index are not in the shard it names "
            f"({', '.join(lost[:5])}); fetch the checkpoint again"
        )
    return {name: files[path] for name, path in where.items()}


def _header_length(path: Path, start: bytes, size: int) -> int:
    """The length that a file of ``size`` bytes beginning with ``start`` gives its header."""
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    possible = size >= LENGTH_BYTES and length <= MAX_HEADER_BYTES
    possible &= start[LENGTH_BYTES : LENGTH_BYTES + 1] in (b"", b"{")
    if not possible and (told := foreign.recognized(start)):
        _refuse(path, f"is no safetensors file but {told}")
    if size < LENGTH_BYTES:
        _refuse(path, f"{size} bytes; a safetensors file has at least {LENGTH_BYTES}; {AGAIN}")
    if length > MAX_HEADER_BYTES:
        rule = f"header of {length} bytes; the limit is {MAX_HEADER_BYTES}"
        _refuse(path, f"{rule}; it is no safetensors file, or {AGAIN}")
    if length > size - LENGTH_BYTES:
        _refuse(path, f"header of {length} bytes in a file of {size}; {AGAIN}")
    return length


def _metadata(path: Path, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        _refuse(path, f"{METADATA_KEY} is {short(value)}; it must map strings to strings")
    for key, text in value.items():
        if not isinstance(text, str):
            _refuse(path, f"{METADATA_KEY} {key!r} is {short(text)}; it must be a string")
    return value


def _entry(path: Path, name: str, value: object) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != _ENTRY_KEYS:
        keys = sorted(value) if isinstance(value, dict) else value
        _refuse_tensor(
            path, name, f"entry has {short(keys)}; it must have dtype, shape and data_offsets"
        )
    type_ = TensorType(_dtype(path, name, value["dtype"]), _shape(path, name, value["shape"]))
    begin, end = _offsets(path, name, value["data_offsets"])
    if _dense_bytes(type_) > _MAX_BYTES:
        _refuse_tensor(path, name, f"shape {list(type_.shape)} overflows 2^63-1 bytes")
    if end - begin != type_.nbytes:
        _refuse_tensor(
            path, name, f"offsets {begin}..{end} hold {end - begin} bytes, {type_} {type_.nbytes}"
        )
    return TensorEntry(type_, begin, end)


def _dtype(path: Path, name: str, value: object) -> DType:
    found = HEADER_DTYPES.get(value) if isinstance(value, str) else None
    if found is None:
        _refuse_tensor(path, name, unknown_name("dtype", short(value), HEADER_DTYPES))
    return found


def _shape(path: Path, name: str, value: object) -> tuple[int, ...]:
    if not _is_sizes(value) or len(value) > _MAX_RANK:
        _refuse_tensor(
            path,
            name,
            f"shape {short(value)}: must list at most {_MAX_RANK} integers in 0..2^63-1",
        )
    return tuple(value)


def _offsets(path: Path, name: str, value: object) -> tuple[int, int]:
    if not _is_sizes(value) or len(value) != 2 or value[0] > value[1]:
        _refuse_tensor(path, name, f"data_offsets {short(value)}: must be [begin, end]")
    return value[0], value[1]


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 <= v <= _MAX_BYTES for v in value)


def _dense_bytes(type_: TensorType) -> int:
    """Bytes with empty axes left out, which array libraries bound even when nothing is stored."""
    sizes = tuple(size for size in type_.shape if size)
    return type_.with_shape(sizes).nbytes


def _check_layout(path: Path, entries: Mapping[str, TensorEntry], data_bytes: int) -> None:
    """Every byte of the data belongs to one tensor, as the format demands."""
    last, position = "", 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        span = f"offsets {entry.begin}..{entry.end}"
        if entry.end > data_bytes:
            _refuse_tensor(path, name, f"{span} leave the {data_bytes} data bytes; {AGAIN}")
        if entry.begin < position:
            owner = f"tensor {short(last)} at {entries[last].begin}..{position}"
            _refuse_tensor(path, name, f"{span} overlap {owner}; no byte may have two owners")
        if entry.begin > position:
            behind = f"behind tensor {short(last)} and " if position else ""
            _refuse_bytes(path, position, entry.begin, f"{behind}before tensor {short(name)}")
        last, position = name, entry.end
    if position != data_bytes:
        _refuse_bytes(path, position, data_bytes, "behind the last tensor")


def _refuse_bytes(path: Path, begin: int, end: int, where: str) -> NoReturn:
    _refuse(path, f"data bytes {begin}..{end} {where} belong to no tensor; none may be left over")


def _refuse(path: Path, rule: str) -> NoReturn:
    raise CheckpointError(f"{path}: {rule}")


def _refuse_tensor(path: Path, name: str, rule: str) -> NoReturn:
    raise CheckpointError(f"{path}: tensor {short(name)}: {rule}")
