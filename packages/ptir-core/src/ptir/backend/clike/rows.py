"""Tables of rows that C-like languages share: of scalars, and of wide values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptir.backend.clike.dialect import CLike, Spelling
from ptir.backend.clike.names import CARRIERS
from ptir.types import BF16, DTYPES, F16, F32, F64, U32, DType

U16: Final = DTYPES["u16"]


def ends(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    signed = dtype.name.startswith("i")
    most = 1 << (dtype.bits - signed)
    return (-most if signed else 0), most - 1


def _neg(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return f"(-{args[0]})" if dtype.is_float else d.wrapped("neg", dtype, width, args)


def _rem(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    if dtype.is_float:
        return d.function("rem", dtype, width, args)
    return d.whole(dtype, width, f"{args[0]} % {args[1]}")


def _fma(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """Contracted for floats; integers wrap."""
    if dtype.is_float:
        return d.function("fma", dtype, width, args)
    product = d.apply("mul", dtype, of, width, args[:2])
    return d.apply("add", dtype, of, width, [product, args[2]])


def _convert(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """Nothing between types of one carrier; floats that become integers have a row of their own."""
    if CARRIERS[dtype.name] == CARRIERS[of.name]:
        return args[0]
    saturates = of.is_float and of.bits > 8 and not dtype.is_float
    return d.spell("saturate" if saturates else "cast", dtype, of, width, args)


def _saturate(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """Floats outside an integer's range become its ends; of NaN nothing is asked."""
    least, most = (d.literal(dtype, end) for end in ends(dtype))
    low, high = (d.literal(of, float(end)) for end in ends(dtype))
    text = f"{args[0]} >= {high} ? {most} : {args[0]} >= {low} ? ({d.type(dtype)}){args[0]} : "
    return d.whole(dtype, width, text + least)


def _bits(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """The carrier's bits, or between 16-bit types those of the stored value; by casts of integers.

    Wide casts keep the bits of floats, too.
    """
    text, target = args[0], d.type(dtype, width)
    if dtype.bits == of.bits == 16:
        text = d.narrowed(of, width, text)
        if dtype.is_float:
            return d.carried(dtype, width, f"({d.type(U16, width)})({text})")
    elif width == 1 and of.is_float and of.bits > 8:
        text = d.spell("recast", DTYPES[f"u{max(32, of.bits)}"], of, 1, [text])
        return f"(({target}){text})"
    elif width == 1 and dtype.is_float and dtype.bits > 8:
        return d.spell("recast", F64 if dtype == F64 else F32, of, 1, [text])
    elif width == 1:
        return f"(({target})({text}))"
    return f"({target})({text})"


def recast_bits(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """The same where ``recast`` takes every type."""
    text = args[0]
    if dtype.bits == of.bits == 16:
        text = (
            d.narrowed(of, width, text)
            if of.is_float
            else d.spell("recast", U16, of, width, [text])
        )
        if dtype.is_float:
            return d.carried(dtype, width, text)
    return d.spell("recast", dtype, of, width, [text])


def _recast(d: CLike, dtype: DType, text: str) -> str:
    return d.spell("recast", dtype, F32 if dtype == U32 else U32, 1, [text])


def _load_half(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    bits = f"({d.types['u32']}){args[0]}"
    if dtype == BF16:
        return _recast(d, F32, f"{bits} << 16")
    return d.spell("half_value", dtype, of, width, [bits])


def _store_half(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    if dtype == BF16:
        return f"({d.types['u16']})({_recast(d, U32, args[0])} >> 16)"
    return d.spell("half_bits", dtype, of, width, args)


def _narrow(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """An f32 rounded to f16 or bf16, half to even."""
    text = args[0]
    if dtype == F16:
        bits = d.spell("half_bits", dtype, of, width, args)
        return d.spell("half_value", dtype, of, width, [bits])
    bits = _recast(d, U32, text)
    rounded = f"{text} == {text} ? {bits} + 0x7fffu + (({bits} >> 16) & 1u) : {bits} | 0x400000u"
    return _recast(d, F32, f"({rounded}) & 0xffff0000u")


def _extreme(relation: str) -> Spelling:
    """One of two integers: compared, because narrow literals have no type."""
    return lambda d, dtype, of, width, args: d.whole(
        dtype, width, f"{args[0]} {relation} {args[1]} ? {args[0]} : {args[1]}"
    )


WIDE: Final[dict[str, Spelling]] = {
    "neg": _neg,
    "not": lambda d, dtype, of, width, args: d.whole(dtype, width, f"~{args[0]}"),
    "rem": _rem,
    "fma": _fma,
    "convert": _convert,
    "bits": _bits,
    "mask": "({0})",
}
"""What wide values of languages with operators between vectors have in common."""

SCALAR: Final[dict[str, Spelling]] = {
    **WIDE,
    "select": "({0} ? {1} : {2})",
    "max": _extreme(">"),
    "min": _extreme("<"),
    "narrow": _narrow,
    "cast": "(({type}){0})",
    "saturate": _saturate,
    "load": "{0}[{1}]",
    "load_bool": "(-(int){0})",
    "load_f16": _load_half,
    "load_bf16": _load_half,
    "store": "{0}[{1}] = {2};",
    "store_bool": "{0} & 1",
    "store_f16": _store_half,
    "store_bf16": _store_half,
}
"""Scalars: ops that are neither an operator nor a function, and what loads and stores are of."""
