"""The packed form of weights, described once: panels of 16 outputs, K-major, 32-bit words.

A matrix of N outputs by K inputs becomes ``[N/16, K/per, 16, per]``: for 16 outputs at a time, one
32-bit word per output holds ``per`` consecutive inputs. A gemv reads panels one after the other, a
gemm reads tiles of them, and a row lookup reads one lane: one layout serves all three, so a
weight is resident once. In programs the packed parameter goes through the composite ``unpack``,
whose lowering says in movement ops what the layout means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ptir.codegen.expressions.expr import Apply, Expr, Load, compare, constant, select
from ptir.codegen.expressions.index import Index, ravel_index
from ptir.codegen.expressions.movement import Coordinates
from ptir.codegen.expressions.unpacked import UNPACK, place_in_panels
from ptir.ir.attributes import Attributes
from ptir.ir.graph import Ref, emit, freeze, source
from ptir.ir.program import Block
from ptir.ops.record import literal, op
from ptir.passes.ranges import NotByRanges, Ranges
from ptir.types import BF16, F16, F32, U32, DType, TensorType
from ptir.weights.record import PANELS

LANES: Final = PANELS.lanes
LEAST: Final = 2 * LANES
"""Outputs from which packing pays."""
VERSION: Final = 1
"""Part of the key of everything that is kept on disk."""


@dataclass(frozen=True)
class Panels:
    """The packed form of one matrix, stored before as ``[N,K]`` ("oi") or ``[K,N]`` ("io")."""

    dtype: DType
    outputs: int
    inputs: int
    layout: str
    per: int
    """Neighbouring inputs that lie side by side: as many as fill a 32-bit word, or 1."""
    stride: int = 0
    """Inputs that a panel holds in memory, where these are only the first of them."""
    runs: tuple[tuple[int, int], ...] = ()
    """The panels in memory that these are one after the other, where they are not the first."""

    @property
    def count(self) -> int:
        """Panels, the last one filled up with zeros."""
        return -(-self.outputs // LANES)

    @property
    def stored(self) -> int:
        """Panels in memory up to the last of these."""
        return self.runs[-1][1] if self.runs else self.count

    @property
    def plain(self) -> TensorType:
        """The type of the matrix as the program knows it."""
        n, k = self.outputs, self.inputs
        return TensorType(self.dtype, (n, k) if self.layout == "oi" else (k, n))

    @property
    def packed(self) -> TensorType:
        """The type of the packed parameter."""
        return TensorType(self.dtype, (self.count, self.inputs // self.per, LANES, self.per))

    def place(self, output: Index, input: Index) -> Coordinates:
        """Where the weight of an output and an input lies in the packed parameter."""
        return place_in_panels(output, input, self.per)

    def weight(self, packed: int, output: Index, input: Index) -> Expr:
        """A weight as f32, read from the packed parameter numbered ``packed`` by whole words."""
        if self.dtype == F32:
            return Load(F32, packed, self.word(output, input))
        word = Load(U32, packed, self.word(output, input))
        return UNPACKED[self.dtype](word, (input % self.per).constant)

    def word(self, output: Index, input: Index) -> Index:
        """The 32-bit word in which a weight lies."""
        shape = (self.stored, (self.stride or self.inputs) // self.per, LANES)
        return ravel_index((output // LANES, input // self.per, output % LANES), shape)

    def pack(self, weight: Ref) -> Ref:
        """The packed parameter computed from the matrix, in movement ops."""
        n = self.count * LANES
        oi = self.layout == "oi"
        if n != self.outputs:
            low, high = (0, 0), (n - self.outputs, 0) if oi else (0, n - self.outputs)
            zero = op("constant")(value=literal(_zero(self.dtype)))
            weight = op("pad")(weight, zero, low=low, high=high)
        words = self.inputs // self.per
        split = (self.count, LANES, words, self.per)
        if oi:
            tiles = op("reshape")(weight, shape=split)
            return op("transpose")(tiles, permutation=(0, 2, 1, 3))
        tiles = op("reshape")(weight, shape=(words, self.per, self.count, LANES))
        return op("transpose")(tiles, permutation=(2, 0, 3, 1))

    def unpack(self, packed: Ref) -> Ref:
        """The matrix as a composite of the packed parameter."""
        operand = source(self.packed)
        lowering = freeze([self._unpacked(operand)], [operand])
        attributes = Attributes({"name": UNPACK, "layout": self.layout, "outputs": self.outputs})
        return emit("composite", [packed], attributes, (self.plain,), (lowering,))[0]

    def _unpacked(self, packed: Ref) -> Ref:
        oi, n, k = self.layout == "oi", self.count * LANES, self.inputs
        order = (0, 2, 1, 3) if oi else (1, 3, 0, 2)
        tiles = op("transpose")(packed, permutation=order)
        matrix = op("reshape")(tiles, shape=(n, k) if oi else (k, n))
        limits = self.plain.shape
        return matrix if limits == matrix.type.shape else _first(matrix, limits)

    def block(self) -> Block:
        """The program that packs one matrix."""
        operand = source(self.plain)
        return freeze([self.pack(operand)], [operand])


def _bf16(word: Expr, place: int) -> Expr:
    """Half of a word: a bf16 is the upper half of an f32."""
    if place == 0:
        return Apply(F32, "bits", Apply(U32, "shift_left", word, constant(U32, 16)))
    return Apply(F32, "bits", Apply(U32, "and", word, constant(U32, 0xFFFF0000)))


def _f16(word: Expr, place: int) -> Expr:
    """Half of a word: exponent and fraction moved into place, the bias corrected by a product."""
    half = Apply(U32, "shift_right", word, constant(U32, 16)) if place else word
    size = Apply(U32, "and", half, constant(U32, 0x7FFF))
    finite = Apply(F32, "bits", Apply(U32, "shift_left", size, constant(U32, 13)))
    finite = Apply(F32, "mul", finite, constant(F32, 2.0**112))
    special = compare("ge", size, constant(U32, 0x7C00))
    ones = Apply(U32, "or", Apply(U32, "bits", finite), constant(U32, 0x7F800000))
    bits = select(special, ones, Apply(U32, "bits", finite))
    sign = Apply(U32, "shift_left", Apply(U32, "and", half, constant(U32, 0x8000)), SIXTEEN)
    return Apply(F32, "bits", Apply(U32, "or", bits, sign))


SIXTEEN: Final = constant(U32, 16)

UNPACKED: Final[dict[DType, Callable[[Expr, int], Expr]]] = {BF16: _bf16, F16: _f16}
"""The f32 value of the weight at a place of a word, by stored type."""


def _first(matrix: Ref, limits: tuple[int, ...]) -> Ref:
    return op("slice")(matrix, starts=(0, 0), limits=limits, strides=None)


def _zero(dtype: DType) -> object:
    import numpy as np

    return np.zeros((), dtype.numpy)


def panels_of(packed: TensorType, attributes: Attributes) -> Panels:
    """The description behind an ``unpack`` composite."""
    per = packed.shape[3]
    inputs = packed.shape[1] * per
    return Panels(packed.dtype, attributes["outputs"], inputs, attributes["layout"], per)


def unpacked_range(ranges: Ranges, value: Ref, axis: int, first: int, end: int) -> Ref:
    """Outputs of an unpacked matrix: the panels that hold them, unpacked.

    Raises ``NotByRanges`` for inputs, or outputs that begin inside a panel.
    """
    (packed,) = value.node.operands
    panels = panels_of(packed.type, value.node.attributes)
    if axis != (0 if panels.layout == "oi" else 1) or first % LANES:
        raise NotByRanges(f"only outputs from a multiple of {LANES} on are panels of their own")
    part = ranges.of(packed, 0, first // LANES, -(-end // LANES))
    return replace(panels, outputs=end - first).unpack(part)
