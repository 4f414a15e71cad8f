"""The 8-bit floats in scalar expressions: widened through f16, rounded with integer arithmetic.

Values of f8e4m3fn and f8e5m2 are carried as their bits and only moved and cast.
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.expressions.expr import Apply, Expr, compare, constant, select
from ptir.types import DTYPES, F16, F32, U8, U32, DType

E4M3: Final = DTYPES["f8e4m3fn"]
E5M2: Final = DTYPES["f8e5m2"]
U16: Final = DTYPES["u16"]
F8: Final = (E4M3, E5M2)

MANTISSA: Final = {E4M3: 3, E5M2: 2}
BIAS: Final = {E4M3: 7, E5M2: 15}
BEYOND: Final = {E4M3: 0x7F, E5M2: 0x7C}
"""What is too large: NaN, or infinity."""
NAN: Final = {E4M3: 0x7F, E5M2: 0x7E}


def from_f8(x: Expr) -> Expr:
    """An 8-bit float as f32: the bits of an f16, whose exponent may be off by a constant."""
    bits = Apply(U16, "convert", Apply(U8, "bits", x))
    if x.dtype == E5M2:
        return Apply(F32, "convert", Apply(F16, "bits", bits << 8))
    sign, size = (bits & 0x80) << 8, bits & 0x7F
    scaled = Apply(F32, "convert", Apply(F16, "bits", sign | (size << 7))) * 256.0
    return select(compare("eq", size, 0x7F), constant(F32, float("nan")), scaled)


def to_f8(target: DType, x: Expr) -> Expr:
    """An f32 rounded to an 8-bit float, half to even; what is too large as ml_dtypes does."""
    bits = Apply(U32, "bits", x)
    sign, size = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    drop, bias = 23 - MANTISSA[target], BIAS[target]
    half = ((size >> drop) & 1) + ((1 << (drop - 1)) - 1)
    code = ((size + half) >> drop) - ((127 - bias) << MANTISSA[target])
    code = select(compare("ge", code, BEYOND[target]), _word(BEYOND, target), code)
    # below the least normal number, a float whose last bit is worth the least step does it
    magic = 2.0 ** (1 - bias - MANTISSA[target] + 23)
    moved = Apply(F32, "bits", size) + magic
    tiny = Apply(U32, "bits", moved) - Apply(U32, "bits", constant(F32, magic))
    least = constant(U32, (128 - bias) << 23)
    code = select(compare("lt", size, least), tiny, code)
    code = select(compare("gt", size, 0x7F800000), _word(NAN, target), code)
    return Apply(target, "bits", Apply(U8, "convert", code | sign))


def _word(table: dict[DType, int], target: DType) -> Expr:
    return constant(U32, table[target])
