"""Calibration texts: a file as windows of tokens, which of a long one are drawn by a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ptir.errors import UsageError, short

if TYPE_CHECKING:
    import numpy as np

Document = str | list[int]
"""A text, or tokens by their ids."""
SAMPLES: Final = 128
"""Windows that are taken where nobody says how many."""
LINES: Final = (".jsonl", ".ndjson")
"""Ends of names of files with a JSON value in each line."""
CHARACTERS: Final = 16
"""Characters of a text that are read for each token that is needed: far more than there are."""


def documents(file: Path) -> list[Document]:
    """The texts of a file: all of it as one, or of JSON lines each line's.

    A line is a string, a list of token ids, or an object with ``text`` or ``tokens``. Raises
    ``UsageError`` for a file that cannot be read, is empty, is no UTF-8 text, or has other lines.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UsageError(f"calibration {file}: cannot be read: {error.strerror}") from error
    if not raw.strip():
        raise UsageError(
            f"calibration {file}: is empty; give a text like those that the model reads"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"calibration {file}: is not UTF-8 text: {error}; convert it") from error
    if "\0" in text:
        raise UsageError(f"calibration {file}: holds bytes of 0, so it is no text; give one")
    if file.suffix.lower() not in LINES:
        return [text]
    lines = enumerate(text.split("\n"), 1)
    return [_document(file, number, line) for number, line in lines if line.strip()]


def _document(file: Path, number: int, line: str) -> Document:
    where = f"calibration {file}, line {number}"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not JSON: {error}; correct it, or name it .txt") from error
    if isinstance(value, dict):
        value = value.get("text", value.get("tokens"))
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(one) is int for one in value):
        return value
    raise UsageError(
        f'{where}: {short(value)} is neither a text nor token ids; write "text", [1, 2],'
        ' {"text": "text"} or {"tokens": [1, 2]}'
    )


def windows(
    texts: Sequence[Document],
    encode: Callable[[Document], list[int]],
    *,
    size: int,
    samples: int,
    seed: int,
    where: str,
) -> np.ndarray[Any, Any]:
    """Up to ``samples`` windows i32[windows, size] of the tokens of ``texts``, put together.

    Windows lie side by side; of more than are wanted a ``seed`` says which are taken. Of texts that
    are far longer than needed a part is read, which the seed chooses too. Raises ``UsageError`` for
    fewer tokens than a window has, and what ``encode`` raises.
    """
    import numpy as np

    draw = np.random.default_rng(seed)
    needed = samples * size
    ids: list[int] = []
    for one in _in_turn(texts, needed * CHARACTERS, draw):
        ids += encode(one)
    whole = len(ids) // size
    if not whole:
        raise UsageError(
            f"{where}: has {len(ids)} tokens, which fill no window of {size}: give a longer text,"
            " or fewer tokens to a window (--window)"
        )
    chosen = np.sort(draw.permutation(whole)[:samples])
    return np.array(ids[: whole * size], np.int32).reshape(whole, size)[chosen]


def _in_turn(texts: Sequence[Document], most: int, draw: Any) -> Iterator[Document]:
    """The texts, or where they are longer than ``most`` in all, some of them, or parts."""
    total = sum(map(len, texts))
    if total <= most:
        yield from texts
        return
    taken = 0
    for number in draw.permutation(len(texts)):
        one = texts[number]
        if len(one) > most:
            first = int(draw.integers(len(one) - most))
            one = one[first : first + most]
        yield one
        taken += len(one)
        if taken >= most:
            return
