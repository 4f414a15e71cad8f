"""Tables of names: what C calls types, numbers, operators and functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ptir.types import DTYPES

CARRIERS: Final = {name: name for name in DTYPES} | {
    "bool": "i32",  # as a mask
    "f16": "f32",
    "bf16": "f32",
    "f8e4m3fn": "u8",  # only moved
    "f8e5m2": "u8",
}
"""The type that carries each element type."""
STORED: Final = CARRIERS | {"bool": "u8", "f16": "u16", "bf16": "u16"}
"""The type that lies in memory."""

WORDS: Final = {
    "i8": "signed char",
    "i16": "short",
    "i32": "int",
    "i64": "long long",
    "u8": "unsigned char",
    "u16": "unsigned short",
    "u32": "unsigned",
    "u64": "unsigned long long",
    "f32": "float",
    "f64": "double",
}
"""What C calls the carriers."""

SUFFIXES: Final = {"u32": "u", "i64": "ll", "u64": "ull"}

SPECIAL: Final = {
    "f32": ('__builtin_nanf("")', "(__builtin_inff())", "(-__builtin_inff())"),
    "f64": ('__builtin_nan("")', "(__builtin_inf())", "(-__builtin_inf())"),
}
"""NaN and the infinities of each carrier."""

WRAPPING: Final = {"add": "+", "sub": "-", "mul": "*", "shift_left": "<<"}
"""Operators that overflow: signed numbers go through unsigned ones, which may."""
BINARY: Final = WRAPPING | {"div": "/", "and": "&", "or": "|", "xor": "^", "shift_right": ">>"}
RELATIONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FORMS: Final = {op: f"{{}} {sign} {{}}" for op, sign in BINARY.items()} | {"neg": "0 - {}"}
"""Operators as templates of their operands; integers are negated so that they wrap."""

FUNCTIONS: Final = {
    "abs": "fabs",
    "rem": "fmod",
    "round": "rint",
    **{
        name: name
        for name in (
            *("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "erf", "pow"),
            *("floor", "ceil", "fma"),
        )
    },
}
"""What the op is called for floats, as in C's ``math.h``."""


def worded(words: Mapping[str, str], names: Mapping[str, str] = CARRIERS) -> dict[str, str]:
    """What a language calls the type behind each element type, from its words for carriers."""
    return {name: words[behind] for name, behind in names.items()}
