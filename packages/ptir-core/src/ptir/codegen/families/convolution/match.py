"""The convolution family: implicit matrix products with packed weights, and what comes after.

Here is what joins a convolution and how its work is cut up; ``serial`` and ``cooperative`` write
the kernels. Serial schedule: a workgroup owns blocks of output rows and panels of outputs. It
copies the operand's rows with their padding to scratch memory of its own (unless nothing is
padded), in which every tap of every window is a fixed distance away, and goes through tiles of
neighbouring pixels and panels in registers, as many as the device's row of ``TILES`` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ptir.codegen.expressions.expr import Load, walk
from ptir.codegen.expressions.index import Index, axis, ravel_index
from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.fusion.graph import Builder, Graph
from ptir.codegen.fusion.renumber import Position, Value
from ptir.codegen.schedules.epilogue import epilogue
from ptir.codegen.schedules.kernel import Fusion
from ptir.codegen.schedules.tiles import Tiles
from ptir.codegen.weights.filters import Convolution, convolution
from ptir.codegen.weights.panels import LANES, Panels, panels_of

SPREAD: Final = 16
"""Floats between the channels of neighbouring pixels where they would share cache sets."""
NEAR: Final = 96 * 1024
"""Floats that a core's own cache holds beside everything else."""


@dataclass(frozen=True)
class Detail:
    """One convolution, where in the block it is, and its packed weight where there is one."""

    position: Position
    shape: Convolution
    packed: Value | None
    panels: Panels | None


def match(graph: Graph, position: int) -> Fusion | None:
    """The fusion of a convolution and its epilogue."""
    made = graph.block.instructions[position]
    shape = convolution(made, graph.block.types, graph.instruction)
    if shape is None or not made.types[0].size or not shape.inputs:
        return None
    packed, panels = _packed(graph, shape)
    detail = Detail(position, shape, packed, panels)
    pixels = axis("m", made.types[0].size // shape.outputs) * shape.outputs
    found = epilogue(graph, position, (pixels + output for output in _outputs(shape)))
    weight = shape.weight if packed is None else packed
    reads = {v for v in (shape.x, weight, shape.bias) if v is not None} | found.inputs
    exact = () if packed is None else (packed,)
    return Fusion(
        "convolution", found.instructions, tuple(sorted(reads)), (found.output,), detail, exact
    )


def _packed(graph: Graph, shape: Convolution) -> tuple[int | None, Panels | None]:
    """The packed parameter behind a weight, and its form, where the panels fit the schedule."""
    made = graph.instruction(shape.weight)
    while made is not None and made.op in ("cast", "reshape", "transpose"):
        made = graph.instruction(made.operands[0])
    if made is None or made.op != "composite" or made.name != UNPACK:
        return None, None
    packed = made.operands[0]
    panels = panels_of(graph.type(packed), made.attributes)
    (outputs, inputs), (own, channels) = shape.filters.matrix, shape.own
    output, channel = axis("o", outputs), axis("c", channels)
    taps = tuple(axis(f"k{n}", size) for n, size in enumerate(shape.taps))
    found = Builder(graph, lambda v: v == packed).at(
        shape.weight, shape.weight_at(output, taps, channel)
    )
    input = ravel_index((*taps, channel), (*shape.taps, channels))
    place = ravel_index(panels.place(output, input), panels.packed.shape)
    fits = shape.groups == 1 or own % LANES == 0 or shape.is_depthwise
    loads = [node for node in walk(found) if isinstance(node, Load)]
    same = (panels.outputs, panels.inputs) == (outputs, inputs)
    if fits and same and [(load.source, load.index) for load in loads] == [(packed, place)]:
        return packed, panels
    return None, None


def _outputs(shape: Convolution) -> Iterator[Index]:
    """The output numbers at which results are stored: of whole panels, and what is left over."""
    groups, own = (1, shape.outputs) if shape.is_depthwise else (shape.groups, shape.own[0])
    whole, left = divmod(own, LANES)
    group = axis("g", groups) * own
    if whole:
        yield group + axis("p", whole) * LANES + axis("lane", LANES)
    for place in range(left):
        yield group + (whole * LANES + place)


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: pieces of ``rows`` output rows and ``tiles`` tiles of panels.

    A register tile has ``high`` rows of ``wide`` pixels and ``panels`` panels; a group of the
    convolution has ``across`` tiles of panels.
    """

    rows: int
    tiles: int
    high: int
    wide: int
    panels: int
    across: int
    groups: int
    row_pieces: int
    tile_pieces: int
    pitch: int
    copied: bool

    def rows_in(self, shape: Convolution) -> int:
        """Rows of the operand under a piece."""
        dimension = shape.dimensions[1]
        return (self.rows - 1) * dimension.stride + dimension.span

    def block(self, shape: Convolution) -> int:
        """Floats of a piece's copy of the operand."""
        return shape.taps[0] * self.rows_in(shape) * columns_in(shape) * self.pitch


def columns_in(shape: Convolution) -> int:
    """Columns of the operand under a row of the result, padding included."""
    dimension = shape.dimensions[2]
    return (dimension.count - 1) * dimension.stride + dimension.span


def choose_tiling(
    shape: Convolution, units: int, least: int, copied: bool, tiles: Tiles, inputs: int = 0
) -> Tiling:
    """The cheapest cut into at least ``least`` pieces where there are as many.

    An element of the copy is a sum of ``inputs`` products.
    """
    found = list(_cuts(shape, copied, tiles))
    most = max(one.row_pieces * one.tile_pieces for one in found) * shape.batch * shape.places[0]
    wanted = min(least, most)
    slabs = shape.batch * shape.places[0]
    enough = [one for one in found if one.row_pieces * one.tile_pieces * slabs >= wanted]
    return min(enough, key=lambda one: _cost(shape, one, units, inputs))


def _cuts(shape: Convolution, copied: bool, held: Tiles) -> Iterator[Tiling]:
    _, height, width = shape.places
    deep = shape.is_depthwise
    groups, own = (1, shape.outputs) if deep else (shape.groups, shape.own[0])
    count = -(-own // LANES)
    panels = 1 if deep else min(held.convolution_panels, count)
    across = -(-count // panels)
    pixels = held.convolution_pixels
    wide = min(width, -(-width // -(-width // pixels)))
    high = min(height, pixels // wide) if wide == width else 1
    for rows in parts(height):
        for tiles in parts(groups * across):
            channels = tiles * LANES if deep else shape.channels
            close = not deep and channels % (SPREAD * LANES) == 0
            pitch = channels + (SPREAD if close else 0)
            pieces = -(-height // rows), -(-groups * across // tiles)
            tile = min(high, rows), wide, panels, across, groups
            yield Tiling(rows, tiles, *tile, *pieces, pitch, copied)


def parts(size: int) -> list[int]:
    """Every size of equal parts."""
    return sorted({-(-size // n) for n in range(1, size + 1)})


def _cost(shape: Convolution, one: Tiling, units: int, inputs: int) -> float:
    """Cycles of the slower of the units: products, copying, and what comes from far away."""
    pieces = shape.batch * shape.places[0] * one.row_pieces * one.tile_pieces
    pixels = one.rows * shape.places[2]
    weights = one.tiles * one.panels * shape.inputs
    block = one.block(shape) if one.copied else 0
    copying = (2 if one.pitch == shape.channels else 4) * block / LANES
    copying += block / LANES * inputs
    far = 2 * weights if shape.inputs * shape.outputs > NEAR else 0
    again = one.tiles * block / 8 if block > NEAR else 0
    each = pixels * weights + copying + far + again
    return math.ceil(pieces / units) * each + 200 * pieces
