"""How WGSL spells scalar ops: **table** ``SPELLED``. All types are i32, u32, f32 and bool."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from ptir.backend.clike.names import RELATIONS
from ptir.types import BOOL, F32, I32, U32, DType

TYPES: Final = {BOOL: "bool", I32: "i32", U32: "u32", F32: "f32"}
"""What carries each type."""

OPERATORS: Final = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%"} | RELATIONS
BITWISE: Final = {"and": "&", "or": "|", "xor": "^"}
LOGICAL: Final = {"and": "&&", "or": "||", "xor": "!="}
FUNCTIONS: Final = {
    **{name: name for name in ("abs", "exp", "log", "sqrt", "sin", "cos", "tanh", "pow")},
    **{name: name for name in ("floor", "ceil", "round", "max", "min")},
    "rsqrt": "inverseSqrt",
}
"""Functions that are built in; ``round`` takes halves to even."""


def literal(dtype: DType, value: float | int) -> str:
    """A constant, exact: floats in hexadecimal. Infinities and NaN have no literal."""
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype == F32:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
        text = f"{rounded.hex()}f"
        return f"({text})" if text.startswith("-") else text
    if dtype == U32:
        return f"{int(value) & 0xFFFFFFFF}u"
    if value == -(1 << 31):
        return "i32(-2147483648)"
    return f"{int(value)}i" if value >= 0 else f"({int(value)}i)"


def applied(op: str, dtype: DType, of: DType, args: Sequence[str]) -> str:
    """A scalar op of texts: ``dtype`` is its result's type, ``of`` its first operand's."""
    if op in SPELLED:
        return SPELLED[op](dtype, of, args)
    if op in OPERATORS:
        return f"({args[0]} {OPERATORS[op]} {args[1]})"
    if op in BITWISE:
        return f"({args[0]} {(LOGICAL if dtype == BOOL else BITWISE)[op]} {args[1]})"
    return f"{FUNCTIONS[op]}({', '.join(args)})"


Spelling = Callable[[DType, DType, Sequence[str]], str]


def _shift(sign: str) -> Spelling:
    """Amounts are u32, whatever is moved."""
    return lambda dtype, of, args: (
        f"({args[0]} {sign} {args[1] if dtype == U32 else f'u32({args[1]})'})"
    )


def _fma(dtype: DType, of: DType, args: Sequence[str]) -> str:
    """Of floats; integers wrap."""
    a, b, c = args
    return f"fma({a}, {b}, {c})" if dtype == F32 else f"({a} * {b} + {c})"


def _neg(dtype: DType, of: DType, args: Sequence[str]) -> str:
    return f"(0u - {args[0]})" if dtype == U32 else f"(-{args[0]})"


def _not(dtype: DType, of: DType, args: Sequence[str]) -> str:
    return f"(!{args[0]})" if dtype == BOOL else f"(~{args[0]})"


def _convert(dtype: DType, of: DType, args: Sequence[str]) -> str:
    """Floats outside an integer's range become its ends; of NaN nothing is asked."""
    text, target = args[0], TYPES[dtype]
    if dtype == of:
        return text
    if of != F32:
        return f"f32({text})" if dtype == F32 else f"bitcast<{target}>({text})"
    low, high = (-(1 << 31), (1 << 31) - 1) if dtype == I32 else (0, (1 << 32) - 1)
    least, most = literal(dtype, low), literal(dtype, high)
    inside = f"select({least}, {target}({text}), {text} >= {literal(F32, float(low))})"
    return f"select({inside}, {most}, {text} >= {literal(F32, float(high + 1))})"


SPELLED: Final[dict[str, Spelling]] = {
    "shift_left": _shift("<<"),
    "shift_right": _shift(">>"),
    "select": lambda dtype, of, args: f"select({args[2]}, {args[1]}, {args[0]})",
    "fma": _fma,
    "neg": _neg,
    "not": _not,
    "convert": _convert,
    "bits": lambda dtype, of, args: f"bitcast<{TYPES[dtype]}>({args[0]})",
    "by_power": lambda dtype, of, args: f"({args[0]} * {args[1]})",
    "nearest": lambda dtype, of, args: _convert(I32, F32, [f"round({args[0]})"]),
}
"""What is neither an operator nor a function."""
