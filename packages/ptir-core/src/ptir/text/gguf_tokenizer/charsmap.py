"""SentencePiece's table of characters to replace (``precompiled_charsmap``), walked as it does.

The normalizer of ``tokenizers`` for such tables goes by grapheme and takes the shortest match, so
it loses marks of decomposed letters; SentencePiece takes the longest match from the left.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ptir.errors import CheckpointError
from ptir.text.gguf_tokenizer.fields import AGAIN, PREFIX, Metadata, integers

if TYPE_CHECKING:
    import tokenizers

CHARSMAP: Final = f"{PREFIX}precompiled_charsmap"
"""The key of the table: its trie's size in bytes, the trie, the replacements."""

_VALUE: Final = 1 << 31
_LABEL: Final = _VALUE | 255
_LEAF: Final = 1 << 8


@dataclass(frozen=True)
class CharsMap:
    """The table as its trie's ``units`` and its replacement ``texts``, zero-terminated UTF-8.

    The trie is a double array over bytes: node ``i`` with the offset ``o`` has children at
    ``i ^ o ^ byte``; a node that ends a key has at ``i ^ o`` where its replacement begins. The
    ``whole`` is the table as it is stored.
    """

    units: tuple[int, ...]
    texts: bytes
    whole: bytes = field(default=b"", repr=False, compare=False)

    def normalize(self, text: tokenizers.NormalizedString) -> None:
        """Replace the characters of ``text`` in place; what ``tokenizers`` calls."""
        found = text.normalized
        changed = self.replaced(found)
        if changed != found:
            text.clear()
            text.append(changed)

    def replaced(self, text: str) -> str:
        """``text`` with the longest keys, from the left, replaced."""
        data, out, at = text.encode("utf-8"), bytearray(), 0
        while at < len(data):
            length, replacement = self._longest(data, at)
            out += replacement
            at += length
        return out.decode("utf-8")

    def _longest(self, data: bytes, start: int) -> tuple[int, bytes]:
        """How many bytes from ``start`` on are replaced by what: a character by itself at least."""
        length, value, node = 0, 0, _offset(self.units[0])
        for end in range(start, len(data)):
            node ^= data[end]
            unit = self.units[node]
            if unit & _LABEL != data[end] or not data[end]:
                break
            node ^= _offset(unit)
            if unit & _LEAF:
                length, value = end - start + 1, self.units[node] & ~_VALUE
        if length:
            return length, self.texts[value : self.texts.index(b"\0", value)]
        match = _CHARACTER.match(data, start)
        assert match is not None
        return len(match[0]), match[0]


_CHARACTER: Final = re.compile(rb"[\x00-\xff][\x80-\xbf]*")


def charsmap_of(metadata: Metadata) -> CharsMap | None:
    """The table that ``metadata`` holds, if any; raises ``CheckpointError``.

    What leads out of the trie, or of the replacements, is refused here.
    """
    value = metadata.get(CHARSMAP)
    table = value if isinstance(value, bytes) else _bytes(integers(metadata, CHARSMAP) or [])
    if not table:
        return None
    size = int.from_bytes(table[:4], "little")
    trie, texts = table[4 : 4 + size], table[4 + size :]
    wrong = _misshapen(size, trie, texts)
    units = struct.unpack(f"<{len(trie) // 4}I", trie[: len(trie) // 4 * 4])
    wrong = wrong or _stray(units, texts)
    if wrong:
        raise CheckpointError(f"{CHARSMAP}: {len(table)} bytes: {wrong}; {AGAIN}")
    return CharsMap(units, texts, table)


def _bytes(values: list[int]) -> bytes:
    wrong = next((one for one in values if not -128 <= one < 256), None)
    if wrong is not None:
        raise CheckpointError(f"{CHARSMAP}: holds {wrong}, which is no byte; {AGAIN}")
    return bytes(one & 255 for one in values)


def _misshapen(size: int, trie: bytes, texts: bytes) -> str:
    if size == 0 or size % 4 or len(trie) < size:
        return f"the trie is said to have {size} bytes, not a multiple of four within the table"
    if not texts.endswith(b"\0"):
        return "the replacements must end with a zero byte"
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError:
        return "the replacements are not UTF-8 text"
    return ""


def _stray(units: tuple[int, ...], texts: bytes) -> str:
    """What leads out of the trie or of the replacements, or nothing."""
    for index, unit in enumerate(units):
        at = index ^ _offset(unit)
        if unit & _VALUE:
            if (start := unit ^ _VALUE) >= len(texts) or texts[start] & 0xC0 == 0x80:
                return f"node {index} has its replacement at {start} of {len(texts)} bytes"
        elif at | 255 >= len(units):
            return f"node {index} has children beyond the {len(units)} nodes"
        elif unit & _LEAF and not units[at] & _VALUE:
            return f"node {index} ends a key, and node {at} does not say what replaces it"
    return ""


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)
