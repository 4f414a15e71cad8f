"""The scores in SentencePiece's ``tokenizer.model``: a message in protobuf's encoding."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ptir.errors import CheckpointError
from ptir.files import read_path

MODEL_FILE: Final = "tokenizer.model"
"""What the file is called that lies beside a ``tokenizer.json``."""
MOST: Final = 256 << 20
"""Bytes of such a file, above those of any model."""

_PIECES: Final = 1
_TRAINED: Final = 2
_TEXT, _SCORE, _TYPE = 1, 2, 3
_KIND: Final = 3
_BPE: Final = 2
_NORMAL: Final = (1, 5)
"""The numbers of fields: of the model, of a piece, of how it was trained; and of values there."""
_SIZES: Final = {1: 8, 5: 4}
"""Bytes of the values of fixed size, by their wire type."""
_AGAIN: Final = "fetch it again, or take it away, and scores are those that the merges say"


def piece_scores(path: Path) -> dict[str, float]:
    """The scores of the normal pieces by their text; none where it is no byte-pair encoding.

    Raises ``CheckpointError`` for a file that is damaged, or no model of SentencePiece.
    """
    message = read_path(path, MOST, CheckpointError, _AGAIN)
    found: dict[str, float] = {}
    merges = False
    try:
        for number, value in _fields(message):
            if number == _TRAINED:
                merges = dict(_fields(_held(value))).get(_KIND) == _BPE
            if number == _PIECES:
                piece = dict(_fields(_held(value)))
                if piece.get(_TYPE, 1) in _NORMAL:
                    (score,) = struct.unpack("<f", _held(piece.get(_SCORE, bytes(4))))
                    found[_held(piece.get(_TEXT, b"")).decode("utf-8")] = score
    except (IndexError, ValueError, struct.error) as error:
        raise CheckpointError(f"{path}: is no model of SentencePiece: {error}: {_AGAIN}") from error
    return found if merges else {}


def _held(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError(f"the number {value} where a message must be")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message by number: integers, or the bytes of anything else."""
    at = 0
    while at < len(message):
        tag, at = _integer(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _integer(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _integer(message, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"byte {at} begins no field")
        if at + size > len(message):
            raise ValueError(f"a field of {size} bytes at {at} of {len(message)}")
        yield tag >> 3, message[at : at + size]
        at += size


def _integer(message: bytes, at: int) -> tuple[int, int]:
    """The integer that begins there, seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
    raise ValueError(f"an integer of more than 64 bits ends at {at}")
