"""Where a value lies while a program runs, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["input", "output", "arena", "constant", "counters"]


@dataclass(frozen=True)
class BufferSlot:
    """A memory: an input, output or constant by number, an offset in the arena, or counters."""

    kind: Kind
    number: int
