"""No 8- and 16-bit integers: they are computed as 32-bit ones, and memory is words.

A value always is what its own type says: whatever may overflow is cut to its bits again. An element
in memory is a part of a word. Reading takes the word apart; writing changes the bits of the element
alone (``StorePacked``), because the neighbours in the word may be another workgroup's: families
distribute elements, not words, and an atomic *and* and *or* of two disjoint parts of a word give
both, in any order. In an array that a thread has to itself the word is put together and written.
"""

from __future__ import annotations

from typing import ClassVar, Final

from ptir.codegen.expressions.expr import Apply, Const, Expr
from ptir.codegen.expressions.index import Index
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.lowering.algebra import bits, op, places, word
from ptir.codegen.lowering.rewriting import Rewriter
from ptir.types import DTYPES, I8, I32, U8, U32, DType

I16, U16 = DTYPES["i16"], DTYPES["u16"]
NARROW: Final = (I8, I16, U8, U16)
KEPT: Final = frozenset(("and", "or", "xor", "max", "min", "select", "rem", "shift_right"))
"""Ops whose result has no bits beyond their operands'."""


class Narrow(Rewriter):
    """Makes 32-bit integers of narrow ones in variables, and words of them in memory."""

    types: ClassVar = {I8: I32, I16: I32, U8: U32, U16: U32}

    def memory(self, dtype: DType) -> DType:
        """Words, whatever integers lie in them."""
        return U32 if dtype in NARROW else dtype

    def visit_apply(self, one: Apply) -> Expr:
        """Computed with 32 bits, cut to its own."""
        args = tuple(map(self.expr, one.args))
        dtype, of = one.dtype, one.args[0].dtype
        if dtype not in NARROW:
            if one.op in ("bits", "convert") and args[0].dtype == dtype and of in NARROW:
                return args[0]
            return Apply(dtype, one.op, *args)
        if one.op == "convert":
            return self._converted(dtype, of, args[0])
        if one.op == "bits":
            return self._cut(dtype, bits(self.type(dtype), args[0]))
        value = Apply(self.type(dtype), one.op, *args)
        return value if one.op in KEPT else self._cut(dtype, value)

    def _converted(self, dtype: DType, of: DType, value: Expr) -> Expr:
        """From floats what is outside becomes the nearest end; integers wrap."""
        target = self.type(dtype)
        if of.is_float:
            whole = self.let(Apply(I32, "convert", value))
            low, high = (Const(I32, end) for end in _ends(dtype))
            return bits(target, op("max", low, op("min", high, whole)))
        if value.dtype.bits == 64:
            value = Apply(target, "convert", value)
        return self._cut(dtype, bits(target, value))

    def _cut(self, dtype: DType, value: Expr) -> Expr:
        """The low bits of a value as a number of their own type."""
        if dtype.kind == "uint":
            return value & ((1 << dtype.bits) - 1)
        if isinstance(value, Const):
            half = 1 << (dtype.bits - 1)
            return Const(I32, (int(value.value) + half) % (2 * half) - half)
        return (value << (32 - dtype.bits)) >> (32 - dtype.bits)

    # --- memory ---

    def visit_read(self, one: Read) -> Expr:
        """A part of a word."""
        if one.dtype not in NARROW or one.memory not in self.arguments:
            return super().visit_read(one)
        at = self.index(one.place)
        per = 32 // one.dtype.bits
        held = Read(U32, one.memory, at // per)
        moved = at % per * one.dtype.bits
        if one.dtype.kind == "uint":
            is_first = moved.is_constant and not moved.constant
            return (held if is_first else held >> places(moved)) & ((1 << one.dtype.bits) - 1)
        up = word(32 - one.dtype.bits) - places(moved)
        if moved.is_constant:
            up = word(32 - one.dtype.bits - moved.constant)
        return bits(I32, held << up) >> (32 - one.dtype.bits)

    def visit_store(self, one: nodes.Store) -> None:
        """A part of a word; arrays of narrow elements hold one a word."""
        at, value = self.index(one.at), self.expr(one.value)
        if one.dtype not in NARROW or self._is_own(one):
            self.emit(nodes.Store(self.type(one.dtype), one.memory, at, value))
            return
        per, ones = 32 // one.dtype.bits, word((1 << one.dtype.bits) - 1)
        moved = self.let(places(at % per * one.dtype.bits))
        self._merge(one.memory, at // per, ones << moved, (bits(U32, value) & ones) << moved)

    def _is_own(self, one: nodes.Store) -> bool:
        """Whether the memory is an array that holds such elements one a word."""
        return one.memory in self.arrays and self.arrays[one.memory].dtype in NARROW

    def _merge(self, memory: str, at: Index, mask: Expr, new: Expr) -> None:
        if memory in self.arguments or self.arrays[memory].shared:
            self.emit(nodes.StorePacked(memory, at, mask, new))
            return
        kept = Read(U32, memory, at) & ~mask
        self.emit(nodes.Store(U32, memory, at, kept | new))


def _ends(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number of a type."""
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
