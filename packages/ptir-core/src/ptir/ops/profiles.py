"""Profiles: the parts of the op set that a backend claims, each a whole or not at all.

A call belongs to the profile of its op and to one profile for each element type beyond the core's
bool, i32, u32 and f32. A backend that claims all of them takes the call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ptir.ops.record import OPS, Op
from ptir.types import DTYPES, DType

PROFILES: Final[dict[str, str]] = {
    "core": "the primitives, and what decomposes into them, on bool, i32, u32 and f32",
    "rng": "random words from a counter and a key",
    "sort": "lines in order, and the greatest elements of each",
    "control-flow": "regions that run once, one of them, or repeatedly",
    "quantized": "affine quantization, with data packed into words",
    "model": "whole language models: prompts of several lengths, caches, token after token",
    "extension": "composites and calls of a backend's own; no backend has to take any",
    "f16": "operands or results of half precision",
    "bf16": "operands or results of bfloat16",
    "f64": "operands or results of double precision",
    "int8": "integers of 8 and 16 bits: i8, u8, i16, u16",
    "int64": "integers of 64 bits: i64, u64",
    "f8": "f8e4m3fn and f8e5m2: moved, cast and bitcast",
}

_OF_DTYPE: Final[dict[str, str]] = {
    "f16": "f16",
    "bf16": "bf16",
    "f64": "f64",
    **dict.fromkeys(("i8", "u8", "i16", "u16"), "int8"),
    **dict.fromkeys(("i64", "u64"), "int64"),
    **dict.fromkeys(("f8e4m3fn", "f8e5m2"), "f8"),
}


def profiles_of(op: Op, dtypes: Iterable[DType]) -> frozenset[str]:
    """The profiles of a call whose operands and results have these dtypes."""
    return frozenset({op.profile}) | profiles_of_dtypes(dtypes)


def profiles_of_dtypes(dtypes: Iterable[DType]) -> frozenset[str]:
    """The profiles of the element types beyond the core's."""
    return frozenset(_OF_DTYPE[dtype.name] for dtype in dtypes if dtype.name in _OF_DTYPE)


def primitives(profile: str = "core") -> tuple[Op, ...]:
    """The ops of a profile without a decomposition: what a backend that claims it implements."""
    return tuple(o for o in OPS.values() if o.profile == profile and o.decomposition is None)


def core_dtypes() -> frozenset[DType]:
    """The element types that need no profile of their own."""
    return frozenset(dtype for name, dtype in DTYPES.items() if name not in _OF_DTYPE)
