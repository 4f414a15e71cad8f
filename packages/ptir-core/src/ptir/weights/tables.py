"""What values in words stand for, where they are no numbers themselves: a *table* of numbers.

A table of at most 4 bits lists its numbers: whole ones in 0 .. 255, which kernels multiply as
bytes, or floats of f32. Values of 8 bits may be the bits of a type: two's complement, or a float
of 8 bits.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ptir.types import DTYPES, I8, DType
from ptir.weights.words import BYTE, TABLE_BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

Table: TypeAlias = tuple[int, ...] | tuple[float, ...] | DType
TYPES: Final = (I8, DTYPES["f8e4m3fn"], DTYPES["f8e5m2"])
"""The types whose bits values of 8 bits may be."""
NAMES: Final = ", ".join(dtype.name for dtype in TYPES)
SIGN: Final = 1 << (BYTE - 1)
"""The bit of two's complement that counts downwards."""


def problem(table: Any, bits: int) -> str | None:
    """What a table of values of ``bits`` bits must be, where it is not that."""
    if table is None:
        return None
    if bits == BYTE:
        return None if isinstance(table, DType) and table in TYPES else f"None or one of {NAMES}"
    if bits > TABLE_BITS:
        return "None"
    count = 1 << bits
    fits = isinstance(table, tuple) and len(table) == count
    if fits and (all(map(_is_byte, table)) or all(map(_is_single, table))):
        return None
    return f"{count} integers in 0 .. 255 or {count} finite floats of f32"


def _is_byte(entry: object) -> bool:
    return type(entry) is int and 0 <= entry <= 255


def _is_single(entry: object) -> bool:
    if type(entry) is not float or not math.isfinite(entry):
        return False
    try:
        (held,) = struct.unpack("<f", struct.pack("<f", entry))
    except OverflowError:  # it rounds to infinity
        return False
    return bool(held == entry)


def has_floats(table: Table | None) -> bool:
    """Whether values stand for numbers that are not all whole: kernels multiply them as floats."""
    if isinstance(table, DType):
        return table.is_float
    return table is not None and isinstance(table[0], float)


def entries(table: Table, bits: int) -> NDArray[Any]:
    """The numbers f32[2**bits] that values stand for."""
    import numpy as np

    if isinstance(table, DType):
        return np.arange(1 << bits, dtype=np.uint8).view(table.numpy).astype(np.float32)
    return np.array(table, np.float32)
