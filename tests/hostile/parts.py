"""A GGUF file taken apart into its fields, each of which may be made wrong, and put together again.

Reading takes right files alone. What is written is whatever the fields say: a length, a count, a
type or an offset of its own stands where one is given, and else what is true.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES

from gguf_bytes import ARRAY, BOOL, CODES, F32, F64, STRING, text, u32, u64

ALIGNMENT = b"general.alignment"
BITS = {kind: 8 * struct.calcsize(code) for kind, code in CODES.items()}
SIZES = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
"""By type of a tensor: the elements of a block, and its bytes."""


@dataclass
class Text:
    """A string, and the length that is written before it."""

    raw: bytes
    length: int | None = None

    def written(self) -> bytes:
        return text(self.raw, self.length)


@dataclass
class Items:
    """An array: of numbers, of strings, or of arrays; ``said`` is the kind that is written."""

    kind: int
    values: list[Any]
    count: int | None = None
    said: int | None = None

    def written(self) -> bytes:
        count = len(self.values) if self.count is None else self.count
        kind = self.kind if self.said is None else self.said
        return u32(kind) + u64(count) + b"".join(packed(self.kind, one) for one in self.values)


@dataclass
class Pair:
    """A key and its value; ``said`` is the kind that is written."""

    key: Text
    kind: int
    value: Any
    said: int | None = None

    def written(self) -> bytes:
        kind = self.kind if self.said is None else self.said
        return self.key.written() + u32(kind) + packed(self.kind, self.value)


@dataclass
class Entry:
    """A tensor: its fields, innermost size first, and its bytes."""

    name: Text
    sizes: list[int]
    kind: int
    data: bytes
    offset: int | None = None

    def written(self, offset: int) -> bytes:
        sizes = b"".join(u64(size & MASK) for size in self.sizes)
        at = offset if self.offset is None else self.offset
        return self.name.written() + u32(len(self.sizes)) + sizes + u32(self.kind) + u64(at & MASK)


MASK = (1 << 64) - 1


@dataclass
class Parts:
    """A file; ``alignment`` is what the tensors are laid out by, whatever the key says."""

    version: int
    pairs: list[Pair]
    entries: list[Entry]
    alignment: int = 32
    counts: tuple[int | None, int | None] = (None, None)
    tail: bytes = field(default=b"", repr=False)

    def written(self) -> bytes:
        """The file."""
        true = len(self.entries), len(self.pairs)
        tensors, keys = (
            one if said is None else said for one, said in zip(true, self.counts, strict=True)
        )
        out = bytearray(b"GGUF" + u32(self.version & 0xFFFFFFFF))
        out += u64(tensors & MASK) + u64(keys & MASK)
        for pair in self.pairs:
            out += pair.written()
        data = bytearray()
        for entry in self.entries:
            out += entry.written(len(data))
            data += entry.data + bytes(-len(entry.data) % self.alignment)
        return bytes(out + bytes(-len(out) % self.alignment) + data + self.tail)

    def pair(self, key: bytes) -> Pair | None:
        return next((pair for pair in self.pairs if pair.key.raw == key), None)


def packed(kind: int, value: Any) -> bytes:
    """A value without its kind; numbers that are too large for it wrap."""
    if isinstance(value, Text | Items):
        return value.written()
    if kind == F32:
        with np.errstate(over="ignore"):
            return np.float32(value).tobytes()
    if kind == F64:
        return np.float64(value).tobytes()
    return (whole(value) & (1 << BITS[kind]) - 1).to_bytes(BITS[kind] // 8, "little")


def whole(value: float) -> int:
    """A number as a whole one; 7 for what has none."""
    return int(value) if math.isfinite(value) else 7


def fitting(entry: Entry) -> int | None:
    """Bytes that the type and sizes of a tensor say; None where they say none that are few."""
    block, nbytes = SIZES.get(entry.kind, (1, 4))
    total = 1
    for size in entry.sizes:
        total *= size
    found = total // block * nbytes
    return found if 0 <= found <= 1 << 20 else None


def parsed(file: bytes) -> Parts:
    """The fields of a right file."""
    reader = _Reader(file, 4)
    version, tensors, keys = reader.one("I"), reader.one("Q"), reader.one("Q")
    pairs = [reader.pair() for _ in range(keys)]
    found = Parts(version, pairs, [])
    known = found.pair(ALIGNMENT)
    found.alignment = known.value if known else 32
    entries = [reader.entry() for _ in range(tensors)]
    start = -(-reader.at // found.alignment) * found.alignment
    for entry in entries:
        assert entry.offset is not None
        size = fitting(entry)
        assert size is not None, entry.name
        entry.data = file[start + entry.offset : start + entry.offset + size]
        entry.offset = None
    found.entries = entries
    return found


@dataclass
class _Reader:
    file: bytes
    at: int

    def one(self, code: str) -> Any:
        (found,) = struct.unpack_from(f"<{code}", self.file, self.at)
        self.at += struct.calcsize(code)
        return found

    def text(self) -> Text:
        size = self.one("Q")
        self.at += size
        return Text(self.file[self.at - size : self.at])

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, count = self.one("I"), self.one("Q")
            return Items(inner, [self.value(inner) for _ in range(count)])
        found = self.one(CODES[kind])
        return bool(found) if kind == BOOL else found

    def pair(self) -> Pair:
        key, kind = self.text(), self.one("I")
        return Pair(key, kind, self.value(kind))

    def entry(self) -> Entry:
        name = self.text()
        sizes = [self.one("Q") for _ in range(self.one("I"))]
        return Entry(name, sizes, self.one("I"), b"", self.one("Q"))


def texts(parts: Parts) -> Iterator[Text]:
    """Every string of a file."""
    for pair in parts.pairs:
        yield pair.key
        if isinstance(pair.value, Text):
            yield pair.value
        elif isinstance(pair.value, Items):
            yield from (one for one in pair.value.values if isinstance(one, Text))
    yield from (entry.name for entry in parts.entries)
