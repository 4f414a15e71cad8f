"""Typed reads of GGUF metadata: a value of the wrong kind is an error that names its key."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ptir.errors import CheckpointError, short

Metadata = Mapping[str, Any]
"""Keys of a GGUF file and their values: numbers, text, or sequences of either."""

PREFIX: Final = "tokenizer.ggml."
"""What the keys of tokenizers begin with."""

AGAIN: Final = "convert the model again, or fetch the file again"
"""What to do about metadata that says nothing usable."""


def text(metadata: Metadata, key: str) -> str | None:
    """The text under ``key`` or None; raises ``CheckpointError``."""
    value = metadata.get(key)
    return None if value is None else _decoded(key, value)


def flag(metadata: Metadata, key: str, default: bool) -> bool:
    """The truth value under ``key``; raises ``CheckpointError``."""
    value = metadata.get(key, default)
    if value is not True and value is not False:
        raise CheckpointError(f"{key}: {short(value)} must be true or false; {AGAIN}")
    return value


def whole(metadata: Metadata, key: str) -> int | None:
    """The integer under ``key`` or None; raises ``CheckpointError``."""
    value = metadata.get(key)
    return None if value is None else _index(key, value)


def texts(metadata: Metadata, key: str) -> list[str] | None:
    """The list of texts under ``key`` or None; raises ``CheckpointError``."""
    values = sequence(metadata, key)
    if values is None:
        return None
    if {*map(type, values)} <= {str}:
        found = list(values)
    else:
        found = [_decoded(f"{key}[{i}]", one) for i, one in enumerate(values)]
    try:
        "".join(found).encode("utf-8")
    except UnicodeEncodeError:
        for index, one in enumerate(found):
            _decoded(f"{key}[{index}]", one)
    return found


def integers(metadata: Metadata, key: str) -> list[int] | None:
    """The list of integers under ``key`` or None; raises ``CheckpointError``."""
    values = sequence(metadata, key)
    if values is None:
        return None
    if {*map(type, values)} <= {int}:
        return list(values)
    return [_index(f"{key}[{i}]", one) for i, one in enumerate(values)]


def numbers(metadata: Metadata, key: str) -> list[float] | None:
    """The list of finite numbers under ``key`` or None; raises ``CheckpointError``."""
    values = sequence(metadata, key)
    if values is None:
        return None
    for index, one in enumerate(values):
        if not isinstance(one, int | float) or not math.isfinite(one):
            raise CheckpointError(f"{key}[{index}]: {short(one)} must be a finite number; {AGAIN}")
    return [float(one) for one in values]


def of_length(key: str, values: Sequence[Any], tokens: int) -> None:
    """Refuse a list that does not have one value for each token."""
    if len(values) != tokens:
        raise CheckpointError(
            f"{key} has {len(values)} values for {tokens} tokens of {PREFIX}tokens; there must be"
            f" one for each; {AGAIN}"
        )


def sequence(metadata: Metadata, key: str) -> Sequence[Any] | None:
    """The array under ``key``, its elements unchecked, or None; raises ``CheckpointError``."""
    value = metadata.get(key)
    if value is None:
        return None
    if hasattr(value, "tolist"):  # of NumPy, or array.array
        value = value.tolist()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise CheckpointError(f"{key}: {short(value)} must be an array; {AGAIN}")
    return value


def _decoded(where: str, value: Any) -> str:
    if not isinstance(value, str | bytes):
        raise CheckpointError(f"{where}: {short(value)} must be text; {AGAIN}")
    try:
        return (value.encode("utf-8") if isinstance(value, str) else value).decode("utf-8")
    except UnicodeError as error:
        raise CheckpointError(f"{where}: {short(value)} is not UTF-8 text; {AGAIN}") from error


def _index(where: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        raise CheckpointError(f"{where}: {short(value)} must be an integer; {AGAIN}") from error
