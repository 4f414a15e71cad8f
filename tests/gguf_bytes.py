"""GGUF files byte by byte, right or wrong in any field, and mutations of right ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f"}
CODES |= {BOOL: "B", U64: "Q", I64: "q", F64: "d"}
AWKWARD = (0, 1, 2, 3, 7, 8, 31, 63, 64, 255, 256, 65535, 1 << 16, 1 << 30, (1 << 31) - 1)
AWKWARD += (1 << 31, (1 << 32) - 1, 1 << 40, 10**12, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def u32(value: int) -> bytes:
    """32 bits."""
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    """64 bits."""
    return struct.pack("<Q", value)


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A string, with a length of its own where that is to be wrong."""
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw) if length is None else length) + raw


def pair(key: str | bytes, kind: int, value: Any) -> bytes:
    """A key with a number, a string, or raw bytes for an array."""
    if isinstance(value, bytes):
        body = value
    else:
        body = text(value) if kind == STRING else struct.pack(f"<{CODES[kind]}", value)
    return text(key) + u32(kind) + body


def items(kind: int, values: Sequence[Any], count: int | None = None) -> bytes:
    """The value of an array."""
    body = b"".join(
        text(v) if kind == STRING else struct.pack(f"<{CODES[kind]}", v) for v in values
    )
    return u32(kind) + u64(len(values) if count is None else count) + body


def entry(
    name: str | bytes, sizes: Sequence[int] = (32, 2), kind: int = 0, offset: int = 0
) -> bytes:
    """A tensor's entry; ``sizes`` innermost first."""
    return text(name) + u32(len(sizes)) + b"".join(map(u64, sizes)) + u32(kind) + u64(offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: bytes = u32(3),
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file."""
    found = counts or (len(tensors), len(keys))
    header = b"GGUF" + version + u64(found[0]) + u64(found[1]) + b"".join((*keys, *tensors))
    return header + bytes(-len(header) % alignment) + data


def whole() -> bytes:
    """A right file that has every type of value and several types of tensors."""
    keys = [pair(f"n.{kind}", kind, 1) for kind in CODES]
    keys += [pair("general.architecture", STRING, "llama"), pair("general.alignment", U32, 64)]
    keys += [pair(f"a.{kind}", ARRAY, items(kind, (0, 1, 1))) for kind in CODES]
    keys += [
        pair("a.s", ARRAY, items(STRING, ("", "é", "abc"))),
        pair("a.none", ARRAY, items(F32, ())),
    ]
    tensors = [entry("blk.0.x", (32, 2), 8, 0), entry("y", (3,), 0, 128), entry("z", (), 1, 192)]
    return gguf(keys, tensors, bytes(range(256)), alignment=64)


def mutated(file: bytes, rng: random.Random) -> bytes:
    """``file`` with one to three changes: numbers, bits, cuts, doublings, holes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        file = rng.choice(CHANGES)(file, rng)
    return file


def _number(file: bytes, rng: random.Random) -> bytes:
    size = rng.choice((1, 4, 4, 8, 8, 8))
    at = rng.randrange(max(1, len(file) - size))
    value = rng.choice((*AWKWARD, rng.getrandbits(64), len(file), len(file) - at))
    return file[:at] + value.to_bytes(16, "little")[:size] + file[at + size :]


def _bit(file: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(file))
    return file[:at] + bytes([file[at] ^ 1 << rng.randrange(8)]) + file[at + 1 :]


def _cut(file: bytes, rng: random.Random) -> bytes:
    return file[: rng.randrange(1, len(file) + 1)]


def _doubled(file: bytes, rng: random.Random) -> bytes:
    begin, end = sorted(rng.randrange(len(file) + 1) for _ in range(2))
    return file[:end] + file[begin:end] + file[end:]


def _lost(file: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(file))
    return file[:begin] + file[begin + rng.randrange(1, 40) :] or b"G"


CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _number,
    _number,
    _number,
    _bit,
    _cut,
    _doubled,
    _lost,
)
