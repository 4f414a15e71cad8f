"""Dtype classes: the sets of element types that op records name.

f8 types are moved, cast and bitcast only, so they are in ``ANY`` and in no other class.
"""

from __future__ import annotations

from ptir.types import DTYPES, DType

DTypeClass = frozenset[DType]


def dtypes(*names: str) -> DTypeClass:
    """A dtype class from names."""
    return frozenset(DTYPES[name] for name in names)


def listed(members: DTypeClass) -> str:
    """The members' names in the order of the dtype table, as error messages show them."""
    return ", ".join(name for name, dtype in DTYPES.items() if dtype in members)


BOOL_ONLY = dtypes("bool")
FLOAT = dtypes("f16", "bf16", "f32", "f64")
SIGNED = dtypes("i8", "i16", "i32", "i64")
UNSIGNED = dtypes("u8", "u16", "u32", "u64")
INTEGER = SIGNED | UNSIGNED
NUMERIC = FLOAT | INTEGER
INDEX = dtypes("i32", "u32", "i64")
BITS = INTEGER | BOOL_ONLY
COMMON = NUMERIC | BOOL_ONLY
F8 = dtypes("f8e4m3fn", "f8e5m2")
ANY = COMMON | F8
