"""The metadata of a GGUF file: keys and values, read from a mapped file that is not trusted.

Nothing is allocated by a number from the file before the bytes that it counts are known to be
there. Arrays stay where they are: of numbers as views, of strings as the places of their ends.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, overload

from ptir.errors import CheckpointError, short
from ptir.params.source import Array

if TYPE_CHECKING:
    import mmap

Value: TypeAlias = "int | float | bool | str | Array | Strings"
"""What a key holds; arrays of numbers are read-only, of the type that is stored."""

MAX_HEADER: Final = 1 << 28
"""Most bytes of a header, ten times those of the largest vocabularies: what a file that is mostly
holes can have read."""
MAX_STRING: Final = 1 << 26
MAX_ARRAY: Final = 1 << 30
MAX_STRINGS: Final = 1 << 22
"""Most strings of an array, ten times those of the longest lists of merges: each becomes a text."""
MAX_KEY: Final = 65535
AGAIN: Final = "the file is cut or damaged: fetch it again"

STRING, ARRAY, BOOL = 8, 9, 7
"""Ids of the types of values that are no plain numbers."""
PLAIN: Final = frozenset({4, 6, BOOL})
"""Of those the numbers that Python's own are written as."""
NUMBERS: Final[Mapping[int, tuple[str, struct.Struct, str]]] = {
    0: ("u8", struct.Struct("<B"), "<u1"),
    1: ("i8", struct.Struct("<b"), "<i1"),
    2: ("u16", struct.Struct("<H"), "<u2"),
    3: ("i16", struct.Struct("<h"), "<i2"),
    4: ("u32", struct.Struct("<I"), "<u4"),
    5: ("i32", struct.Struct("<i"), "<i4"),
    6: ("f32", struct.Struct("<f"), "<f4"),
    7: ("bool", struct.Struct("<B"), "<u1"),
    10: ("u64", struct.Struct("<Q"), "<u8"),
    11: ("i64", struct.Struct("<q"), "<i8"),
    12: ("f64", struct.Struct("<d"), "<f8"),
}
"""By id of a value's type: its name, how one is read, and NumPy's name of it."""
_U32, _F32, _U64 = NUMBERS[4][1], NUMBERS[6][1], NUMBERS[10][1]
DIGITS: Final = range(6, 10)
"""Digits that may be the fewest that say which f32 a number is."""


def shortest(number: float) -> float:
    """The f64 with the fewest digits that is this f32: 1e-05, not 9.999999747378752e-06.

    What a file says of a model came from such a number.
    """
    if not math.isfinite(number):
        return number
    found = (float(f"{number:.{digits}g}") for digits in DIGITS)
    return next(one for one in found if struct.unpack("<f", struct.pack("<f", one))[0] == number)


class Strings(Sequence[str]):
    """An array of strings in a mapped file; each is decoded when it is asked for.

    Raises ``CheckpointError`` naming the key and the place of a string that is not UTF-8, and when
    the file was cut since it was mapped: touching what is gone would end the process.
    """

    def __init__(self, buffer: mmap.mmap, first: int, ends: array[int], where: str) -> None:
        self._buffer, self._first, self._ends, self._where = buffer, first, ends, where

    def __len__(self) -> int:
        return len(self._ends)

    def check_there(self) -> None:
        """Raise ``CheckpointError`` when the file was cut since it was mapped."""
        found, mapped = self._buffer.size(), len(self._buffer)
        if found < mapped:
            raise CheckpointError(
                f"{self._where}: the file was cut from {mapped} to {found} bytes while it was in"
                " use; fetch it again and load the model anew"
            )

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        self.check_there()
        at = range(len(self))[index]
        begin = self._ends[at - 1] if at else self._first
        return self._text(at, begin + 8, self._ends[at])

    def __iter__(self) -> Iterator[str]:
        self.check_there()
        import numpy as np

        ends = np.frombuffer(self._ends, np.uint64) - np.uint64(self._first)
        begins = np.append(0, ends[:-1].astype(np.int64)) + 8
        raw = self._buffer[self._first : self._ends[-1] if self._ends else self._first]
        try:  # in one go: vocabularies have 10^5 strings and more
            places = zip(begins.tolist(), ends.tolist(), strict=False)
            return iter([raw[begin:end].decode() for begin, end in places])
        except UnicodeDecodeError:  # one by one, up to the one that is named
            return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} strings of {self._where}>"

    def _text(self, at: int, begin: int, end: int) -> str:
        try:
            return self._buffer[begin:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self._where}: string {at} is not UTF-8 ({error.reason}): {AGAIN}"
            ) from error


@dataclass
class Cursor:
    """A place in a mapped file from which fields are read one after the other.

    Every method raises ``CheckpointError`` with the file, the field, the value and the rule.
    """

    path: Path
    buffer: mmap.mmap
    at: int

    @property
    def size(self) -> int:
        """Bytes that a header may take: all, of a file that is not very large."""
        return min(len(self.buffer), MAX_HEADER)

    @property
    def left(self) -> int:
        """Bytes behind the place."""
        return self.size - self.at

    def refuse(self, what: str, rule: str) -> NoReturn:
        """Say that ``what`` breaks a rule."""
        raise CheckpointError(f"{self.path}: {what}: {rule}")

    def number(self, kind: struct.Struct, what: str) -> Any:
        """The next number."""
        if kind.size > self.left:
            self.refuse(what, f"ends behind the {self.size} bytes that a header may have; {AGAIN}")
        (value,) = kind.unpack_from(self.buffer, self.at)
        self.at += kind.size
        return shortest(value) if kind is _F32 else value

    def u32(self, what: str) -> int:
        """The next number of 32 bits."""
        return int(self.number(_U32, what))

    def u64(self, what: str) -> int:
        """The next number of 64 bits."""
        return int(self.number(_U64, what))

    def count(self, what: str, each: int, most: int) -> int:
        """A number of things of at least ``each`` bytes that follow."""
        found = self.u64(what)
        if found > most:
            self.refuse(what, f"{found}: at most {most} may be; {AGAIN}")
        if found * each > self.left:
            rule = (
                f"{found} of at least {each} bytes do not fit the {self.left} bytes that are left"
            )
            self.refuse(what, f"{rule}; {AGAIN}")
        return found

    def text(self, what: str, most: int = MAX_STRING) -> str:
        """The next string."""
        length = self.u64(f"length of {what}")
        if length > min(most, self.left):
            rule = f"{length} bytes; at most {most} may be, and {self.left} are left"
            self.refuse(f"length of {what}", f"{rule}; {AGAIN}")
        raw = self.buffer[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.refuse(what, f"{short(raw)} is not UTF-8 ({error.reason}); {AGAIN}")

    def strings(self, what: str) -> Strings:
        """The next array of strings: one look at each length, none at what they say."""
        count = self.count(f"{what}: number of strings", 8, MAX_STRINGS)
        first = at = self.at
        size = self.size
        last = size - 8
        unpack, buffer, ends = _U64.unpack_from, self.buffer, array("Q")
        for _ in range(count):
            if at > last:
                break
            at += 8 + unpack(buffer, at)[0]
            ends.append(at if at <= size else size + 1)
        if len(ends) < count or at > size:
            place = len(ends) - (at > size)
            last_byte = f"the {size} bytes that a header may have"
            rule = f"string {place} of {count} ends behind {last_byte}"
            self.refuse(what, f"{rule}; {AGAIN}")
        self.at = at
        return Strings(self.buffer, first, ends, f"{self.path}: {what}")

    def array(self, kind: int, what: str) -> Array | Strings:
        """The next array, of elements of a kind."""
        import numpy as np

        if kind == STRING:
            return self.strings(what)
        if kind not in NUMBERS:
            nested = "an array of arrays" if kind == ARRAY else f"an array of type {kind}"
            self.refuse(what, f"{nested}; elements must be numbers or strings; {AGAIN}")
        name, _, code = NUMBERS[kind]
        each = np.dtype(code).itemsize
        count = self.count(f"{what}: number of {name}", each, MAX_ARRAY)
        found = np.frombuffer(self.buffer, code, count, self.at)
        if kind == BOOL:
            if count and found.max() > 1:
                self.refuse(what, f"bool byte {found.max()}; bytes must be 0 or 1; {AGAIN}")
            found = found.view(np.bool_)
        self.at += count * each
        return found

    def value(self, what: str) -> Value:
        """The next value, whose type stands before it."""
        kind = self.u32(f"{what}: type")
        if kind == STRING:
            return self.text(what)
        if kind == ARRAY:
            return self.array(self.u32(f"{what}: type of elements"), what)
        if kind not in NUMBERS:
            known = f"one of 0 to {max(NUMBERS)}"
            self.refuse(
                f"{what}: type", f"{kind} is no type of values; it must be {known}; {AGAIN}"
            )
        found = self.number(NUMBERS[kind][1], what)
        if kind != BOOL:
            return found  # type: ignore[no-any-return]
        if found > 1:
            self.refuse(what, f"bool byte {found}; it must be 0 or 1; {AGAIN}")
        return bool(found)


def typed(value: Value, kind: int) -> Any:
    """A value as one that is written in its type again: a number of NumPy's where it takes that.

    ``kind`` is its id. Python's own are written as u32, f32 and bool.
    """
    if kind not in NUMBERS or kind in PLAIN:
        return value
    import numpy as np

    return np.dtype(NUMBERS[kind][2]).type(value)


def read_metadata(cursor: Cursor, count: int) -> tuple[dict[str, Value], dict[str, int]]:
    """``count`` keys and values from where ``cursor`` stands, and the type of each value."""
    found: dict[str, Value] = {}
    types: dict[str, int] = {}
    for number in range(count):
        key = cursor.text(f"key {number}", MAX_KEY)
        if not key:
            cursor.refuse(f"key {number}", f"is empty; a key must have a name; {AGAIN}")
        if key in found:
            cursor.refuse(f"key {short(key)}", f"stands there twice; keys must be unique; {AGAIN}")
        types[key] = int.from_bytes(cursor.buffer[cursor.at : cursor.at + 4], "little")
        found[key] = cursor.value(f"key {short(key)}")
    return found, types
