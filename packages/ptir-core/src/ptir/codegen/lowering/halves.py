"""No 16-bit and no 8-bit floats: f16 and bf16 are computed as f32 (as they are carried anyway).

Their bits are taken apart and put together as integers: every f16 is an f32, and an f32 becomes the
nearest f16 or bf16, half to even, with NaN staying NaN. Nothing here meets a subnormal f32 that
matters, so a device may flush those to zero. 8-bit floats are only moved, as bytes.
"""

from __future__ import annotations

from typing import ClassVar, Final

from ptir.codegen.expressions.expr import Apply, Const, Expr
from ptir.codegen.expressions.float8 import E4M3, E5M2, F8
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.lowering.algebra import bits, choose, test, word
from ptir.codegen.lowering.rewriting import Rewriter
from ptir.types import BF16, DTYPES, F16, F32, U8, U32, DType

U16: Final = DTYPES["u16"]
HALVES: Final = (F16, BF16)
SIGN, SIZE, INFINITY, QUIET = 0x80000000, 0x7FFFFFFF, 0x7F800000, 0x400000


class Halves(Rewriter):
    """f32 in registers, words of 16 bits in memory."""

    types: ClassVar = {F16: F32, BF16: F32, E4M3: U8, E5M2: U8}

    def memory(self, dtype: DType) -> DType:
        """16 or 8 bits."""
        return U16 if dtype in HALVES else self.types.get(dtype, dtype)

    def visit_const(self, one: Const) -> Expr:
        """8-bit floats are given as their bits."""
        if one.dtype in F8:
            return Const(U8, int(one.value))
        return super().visit_const(one)

    def visit_read(self, one: Read) -> Expr:
        """The f32 that the bits in memory are."""
        found = super().visit_read(one)
        if one.dtype in HALVES and one.memory in self.arguments:
            return self._value(one.dtype, Apply(U32, "convert", found))
        return found

    def visit_store(self, one: nodes.Store) -> None:
        """The bits, to memory and into the words of an array."""
        at, value = self.index(one.at), self.expr(one.value)
        if one.dtype in HALVES and self._is_narrow(one):
            value = Apply(U16, "convert", self._words(one.dtype, value))
            self.emit(nodes.Store(U16, one.memory, at, value))
        else:
            self.emit(nodes.Store(self.type(one.dtype), one.memory, at, value))

    def _is_narrow(self, one: nodes.Store) -> bool:
        return one.memory in self.arguments or self.arrays[one.memory].dtype not in HALVES

    def visit_apply(self, one: Apply) -> Expr:
        """Roundings and bits; everything else is computed as f32."""
        args = tuple(map(self.expr, one.args))
        of = one.args[0].dtype
        if one.op == "narrow":
            return self._value(one.dtype, self._words(one.dtype, args[0]))
        if one.op == "bits" and one.dtype.bits == of.bits == 16:
            return self._recast(one.dtype, of, args[0])
        if one.op in ("bits", "convert") and self.type(one.dtype) == args[0].dtype:
            return args[0]
        return Apply(self.type(one.dtype), one.op, *args)

    def _recast(self, dtype: DType, of: DType, value: Expr) -> Expr:
        """Between 16-bit types: the bits of the stored value."""
        if of in HALVES:
            value = Apply(U16, "convert", self._words(of, value))
        if dtype not in HALVES:
            return bits(dtype, value)
        return self._value(dtype, Apply(U32, "convert", bits(U16, value)))

    def _value(self, dtype: DType, stored: Expr) -> Expr:
        """The f32 behind 16 bits, which are given as a u32."""
        if dtype == BF16:
            return bits(F32, stored << 16)
        return _from_half(self.let(stored))

    def _words(self, dtype: DType, value: Expr) -> Expr:
        """The bits of an f32 rounded to 16 bits, as a u32."""
        held = self.let(bits(U32, value))
        return to_bfloat(held) if dtype == BF16 else self._to_half(held)

    def _to_half(self, held: Expr) -> Expr:
        """The bits of the nearest f16, of the bits of an f32."""
        size = self.let(held & SIZE)
        sign = (held >> 16) & 0x8000
        # 2^-14 is the least normal f16; above 65519.99 all is infinite
        normal = ((size - (112 << 23)) + (((size >> 13) & 1) + 0xFFF)) >> 13
        small = bits(U32, bits(F32, size) + 0.5) - (126 << 23)
        found = choose(test("lt", size, 113 << 23), small, normal)
        found = choose(test("ge", size, 0x477FF000), word(0x7C00), found)
        nan = ((held >> 13) & 0x3FF) | 0x7E00
        return sign | choose(test("gt", size, INFINITY), nan, found)


def to_bfloat(held: Expr) -> Expr:
    """The bits of the nearest bf16, of the bits of an f32."""
    rounded = held + (((held >> 16) & 1) + 0x7FFF)
    return choose(test("gt", held & SIZE, INFINITY), held | QUIET, rounded) >> 16


def _from_half(held: Expr) -> Expr:
    """The f32 of the bits of an f16: subnormal ones as whole numbers times 2^-24."""
    sign, size = (held & 0x8000) << 16, held & 0x7FFF
    wide = (size << 13) + (112 << 23)
    wide = choose(test("ge", size, 0x7C00), wide + (112 << 23), wide)
    tiny = Apply(F32, "convert", held & 0x3FF) * 2.0**-24
    return bits(F32, sign | choose(test("lt", size, 0x400), bits(U32, tiny), wide))
