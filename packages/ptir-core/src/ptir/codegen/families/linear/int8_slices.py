"""Activations as whole numbers of three signed int8 slices: what both schedules share.

Activations of a group become whole numbers of 24 bits, in units of a power of two that fits the
largest of them, and those become three slices. An activation is off by at most 2^-24 of the largest
of its group, as if it had been rounded to f32 beside that. A group with an infinity or a NaN gives
NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ptir.codegen.expressions.expr import Apply, Expr, compare, constant, select
from ptir.codegen.expressions.index import Axis, Index, axis
from ptir.codegen.families.linear.parts import Linear
from ptir.codegen.kernel_ir.values import Gather, Lane
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import EmitContext
from ptir.codegen.weights.panels import LANES
from ptir.codegen.weights.quantized import Quantized
from ptir.types import F32, I8, I32, U32

SLICES: Final = 3
LARGEST: Final = 128
"""Most activations of a group, so that its sums fit 32 bits."""
CENTRE: Final = 0x808080
"""Added to a number, makes each of its three bytes a slice plus 128."""
MARGIN: Final = 0x18000
"""Added to the bits of the largest, keeps the highest slice below 128."""
LEAST: Final = 24
"""Exponents (as stored) below which the unit stays as it is: that of the smallest normal f32."""
SIZE: Final = 0x7FFFFFFF
INFINITE: Final = 0x7F800000
NAN: Final = 0x7FC00000


def fits(linear: Linear, context: EmitContext) -> bool:
    """Whether slices are for this contraction's weight and for the device."""
    quantized = linear.quantized
    if quantized is None or not quantized.is_whole or "dot_bytes" not in context.dialect.dots:
        return False
    whole = quantized.zero is None or quantized.zero.is_integer()
    return whole and quantized.group % LANES == 0 and quantized.group <= LARGEST


def _ordered(writer: Writer, quantized: Quantized, value: Expr) -> Expr:
    """A vector of activations in the order of the words' bytes (``Quantized.bytes_of``)."""
    with writer.lanes(Axis("lane", LANES)):
        held = writer.let(writer.wide(value))
        if quantized.parts > 1:
            order = quantized.order_of_bytes(LANES)
            held = writer.let(Gather(*(Lane(held, place) for place in order)))
    return held


def slices_of(
    writer: Writer,
    quantized: Quantized,
    x: Callable[[Index], Expr],
    put: Callable[[int, Index, Expr], None],
    dropped: int = 0,
) -> tuple[Expr, Expr]:
    """The slices of a group of activations: ``put(slice, place, byte)``, the lowest slice first.

    ``x`` and ``put`` are asked for a vector: a place in the group for every lane. Gives the unit of
    sums whose lowest ``dropped`` bits are left out, and the sum of the whole numbers. Sizes are
    compared as integers, in which infinity and NaN are the largest.
    """
    places = [axis("lane", LANES) + first for first in range(0, quantized.group, LANES)]
    values = [_ordered(writer, quantized, x(place)) for place in places]
    with writer.lanes(Axis("lane", LANES)):
        largest = writer.let(writer.wide(_largest([_size(v) for v in values])))
    most = Apply(U32, "bits", writer.reduce_lanes("max", largest))
    stored = (most + MARGIN) >> 23
    field = select(compare("lt", stored, LEAST), constant(U32, LEAST), stored)
    factor = _float(constant(U32, 276) - field)
    unit = _float(field - (22 - dropped))
    nan = Apply(F32, "bits", constant(U32, NAN))
    scale = writer.let(writer.scalar(factor))
    total: Expr | None = None
    with writer.lanes(Axis("lane", LANES)):
        for place, value in zip(places, values, strict=True):
            whole = Apply(I32, "nearest", value * scale)
            total = whole if total is None else total + whole
            raised = (Apply(U32, "bits", whole) + CENTRE) ^ CENTRE
            for digit in range(SLICES):
                moved = raised >> (8 * digit)
                found = Apply(I32, "bits", moved if digit else raised)
                put(digit, place, Apply(I8, "convert", found))
        assert total is not None
        summed = writer.let(writer.wide(total))
    known = select(compare("ge", most, INFINITE), nan, unit)
    return known, writer.reduce_lanes("add", summed)


def _float(field: Expr) -> Expr:
    """The power of two with a stored exponent."""
    return Apply(F32, "bits", field << 23)


def _size(value: Expr) -> Expr:
    """The bits of an absolute value: in order as numbers, infinity and NaN the largest."""
    return Apply(I32, "bits", value) & SIZE


def _largest(values: Sequence[Expr]) -> Expr:
    """The largest, lane by lane."""
    found = values[0]
    for value in values[1:]:
        found = Apply(I32, "max", found, value)
    return found
