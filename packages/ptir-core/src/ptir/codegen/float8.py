"""Casts to and from 8-bit floats in scalar ops, as ``ml_dtypes`` rounds: once, half to even.

A value of such a type is carried as its byte: it is moved, bitcast and cast, never computed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptir.codegen.expr import Apply, Expr, compare, constant, select
from ptir.types import DTYPES, F32, U8, U32, DType


@dataclass(frozen=True)
class Layout:
    """Bits of the fraction, the exponent's bias, and the codes of infinity (if any) and NaN."""

    fraction: int
    bias: int
    infinity: int | None
    nan: int

    @property
    def last(self) -> int:
        """The greatest code that is a finite number."""
        return (self.nan if self.infinity is None else self.infinity) - 1

    @property
    def step(self) -> int:
        """The exponent of the distance between subnormal numbers."""
        return 1 - self.bias - self.fraction


LAYOUTS: Final[dict[DType, Layout]] = {
    DTYPES["f8e4m3fn"]: Layout(3, 7, None, 0x7F),
    DTYPES["f8e5m2"]: Layout(2, 15, 0x7C, 0x7E),
}


def _u32(value: int) -> Expr:
    return constant(U32, value)


def widened(x: Expr) -> Expr:
    """An 8-bit float as f32."""
    layout = LAYOUTS[x.dtype]
    code = Apply(U32, "convert", Apply(U8, "bits", x))
    size = Apply(U32, "and", code, _u32(0x7F))
    shift = 23 - layout.fraction
    raised = Apply(U32, "shift_left", size, _u32(shift))
    normal = Apply(F32, "bits", Apply(U32, "add", raised, _u32((127 - layout.bias) << 23)))
    small = Apply(F32, "mul", Apply(F32, "convert", size), constant(F32, 2.0**layout.step))
    least = _u32(1 << layout.fraction)
    result: Expr = select(compare("lt", size, least), small, normal)
    if layout.infinity is not None:
        infinite = compare("eq", size, _u32(layout.infinity))
        result = select(infinite, constant(F32, float("inf")), result)
    result = select(compare("gt", size, _u32(_most(layout))), constant(F32, float("nan")), result)
    negative = compare("ge", code, _u32(0x80))
    return select(negative, Apply(F32, "neg", result), result)


def _most(layout: Layout) -> int:
    """The greatest code that is not NaN."""
    return layout.last if layout.infinity is None else layout.infinity


def narrowed(target: DType, x: Expr) -> Expr:
    """An f32 (its last bit set where it is inexact already) as an 8-bit float."""
    layout = LAYOUTS[target]
    bits = Apply(U32, "bits", x)
    size = Apply(U32, "and", bits, _u32(0x7FFFFFFF))
    code = select(
        compare("lt", size, _u32((128 - layout.bias) << 23)),
        _subnormal(layout, size),
        _normal(layout, size),
    )
    over = _u32(layout.nan if layout.infinity is None else layout.infinity)
    code = select(compare("gt", code, _u32(layout.last)), over, code)
    code = select(compare("ne", x, x), _u32(layout.nan), code)
    sign = Apply(U32, "and", Apply(U32, "shift_right", bits, _u32(24)), _u32(0x80))
    return Apply(target, "bits", Apply(U8, "convert", Apply(U32, "or", code, sign)))


def _normal(layout: Layout, size: Expr) -> Expr:
    """The code of a normal number: its fraction rounded, its exponent moved."""
    shift = 23 - layout.fraction
    odd = Apply(U32, "and", Apply(U32, "shift_right", size, _u32(shift)), _u32(1))
    half = Apply(U32, "add", odd, _u32((1 << (shift - 1)) - 1))
    cut = Apply(U32, "shift_right", Apply(U32, "add", size, half), _u32(shift))
    return Apply(U32, "sub", cut, _u32((127 - layout.bias) << layout.fraction))


def _subnormal(layout: Layout, size: Expr) -> Expr:
    """The code of a small number: an f32 whose last bit is the step rounds it when added."""
    anchor = constant(F32, 2.0 ** (layout.step + 23))
    summed = Apply(F32, "add", Apply(F32, "bits", size), anchor)
    return Apply(U32, "sub", Apply(U32, "bits", summed), Apply(U32, "bits", anchor))
