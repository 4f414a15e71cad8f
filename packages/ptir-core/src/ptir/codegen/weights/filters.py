"""Convolutions described once: their geometry, the axes of their weight, and how it is packed.

A convolution is the composite ``conv2d``, or a contraction of ``extract_patches`` with a weight
over the window and the channels. Up to three spatial axes are brought into one form, depth, rows
and columns. Its weight goes into panels of 16 outputs whose inputs are taps, then channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ptir.codegen.expressions.index import Index
from ptir.codegen.fusion.renumber import Value
from ptir.codegen.weights.panels import LANES, Panels
from ptir.ir.attributes import Attributes
from ptir.ir.graph import Ref, freeze, source
from ptir.ir.program import Block, Instruction
from ptir.ops.record import op
from ptir.ops.schedules import CONV2D_WINOGRAD
from ptir.ops.sliding import WindowDimension, window_dimensions
from ptir.types import BF16, F16, F32, TensorType

NAMES: Final = ("conv2d", CONV2D_WINOGRAD)
"""The composites that are taken whole; their operands and attributes are the same."""
STORED: Final = (F32, F16, BF16)
"""Element types of weights."""
SPATIAL: Final = 3
"""Most spatial axes."""
OUTPUT: Final = -1
CHANNEL: Final = -2
"""Roles of the weight's axes; a number from 0 is the tap along that spatial axis."""

Place = tuple[Index, ...]


@dataclass(frozen=True)
class Convolution:
    """A convolution of ``x`` [N, spatial..., C] with ``weight``; the result is [N, places..., O].

    ``dimensions`` has three entries, those of missing leading axes trivial. ``roles`` says what
    each axis of the weight is.
    """

    x: Value
    weight: Value
    bias: Value | None
    batch: int
    channels: int
    outputs: int
    groups: int
    dimensions: tuple[WindowDimension, WindowDimension, WindowDimension]
    spatial: int
    roles: tuple[int, ...]

    @property
    def taps(self) -> tuple[int, int, int]:
        """Taps of the window along depth, rows and columns."""
        depth, rows, columns = (dimension.window for dimension in self.dimensions)
        return depth, rows, columns

    @property
    def places(self) -> tuple[int, int, int]:
        """Windows along depth, rows and columns."""
        depth, rows, columns = (dimension.count for dimension in self.dimensions)
        return depth, rows, columns

    @property
    def own(self) -> tuple[int, int]:
        """The outputs and the channels of one group."""
        return self.outputs // self.groups, self.channels // self.groups

    @property
    def inputs(self) -> int:
        """Products behind one output."""
        return math.prod(self.taps) * self.own[1]

    @property
    def is_depthwise(self) -> bool:
        """Whether every output sees the channel of its own number only."""
        return self.groups == self.channels == self.outputs > 1

    def weight_at(self, output: Index, taps: Sequence[Index], channel: Index) -> Place:
        """Where the weight is that multiplies a group's channel at a tap, in the weight's axes."""
        along = taps[SPATIAL - self.spatial :]
        named = {OUTPUT: output, CHANNEL: channel}
        return tuple(named[role] if role < 0 else along[role] for role in self.roles)

    def x_at(self, batch: Index, place: Sequence[Index], channel: Index) -> Place:
        """Where an element of the operand is, in the operand's axes."""
        return (batch, *place[SPATIAL - self.spatial :], channel)

    @property
    def filters(self) -> Filters:
        """How the weight is packed."""
        inner = [a for role in range(self.spatial) for a in (self.roles.index(role),)]
        order = (self.roles.index(OUTPUT), *inner, self.roles.index(CHANNEL))
        along = self.taps[SPATIAL - self.spatial :]
        return Filters((self.outputs, *along, self.own[1]), order)


@dataclass(frozen=True)
class Filters:
    """A weight [O, taps..., C] once its axes are permuted by ``order``."""

    shape: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def matrix(self) -> tuple[int, int]:
        """Outputs by inputs."""
        return self.shape[0], math.prod(self.shape[1:])


@dataclass(frozen=True)
class PackedFilters:
    """The packed form of a convolution's weight, made of ``panels.Panels``."""

    panels: Panels
    filters: Filters

    @property
    def plain(self) -> TensorType:
        """The type of the weight as the program knows it."""
        order, shape = self.filters.order, self.filters.shape
        return TensorType(
            self.panels.dtype, tuple(shape[order.index(a)] for a in range(len(order)))
        )

    @property
    def packed(self) -> TensorType:
        """The type of the packed parameter."""
        return self.panels.packed

    def unpack(self, packed: Ref) -> Ref:
        """The weight as movement ops on the packed parameter."""
        tiled = op("reshape")(self.panels.unpack(packed), shape=self.filters.shape)
        back = tuple(self.filters.order.index(a) for a in range(len(self.filters.order)))
        return op("transpose")(tiled, permutation=back)

    def block(self) -> Block:
        """The program that packs one weight."""
        operand = source(self.plain)
        turned = op("transpose")(operand, permutation=self.filters.order)
        matrix = op("reshape")(turned, shape=self.filters.matrix)
        return freeze([self.panels.pack(matrix)], [operand])


def packed_filters(type: TensorType, convolution: Convolution) -> PackedFilters | None:
    """The packed form of a weight of this type, where packing pays."""
    outputs, inputs = convolution.filters.matrix
    per = 32 // type.dtype.bits
    whole = convolution.groups == 1 or convolution.own[0] % LANES == 0
    if not (whole or convolution.is_depthwise) or outputs < LANES or inputs % per:
        return None
    panels = Panels(type.dtype, outputs, inputs, "oi", per)
    return PackedFilters(panels, convolution.filters)


Types = Sequence[TensorType]


def convolution(
    instruction: Instruction, types: Types, maker: Callable[[int], Instruction | None]
) -> Convolution | None:
    """What an instruction convolves, or None; ``types`` are those of the block's values."""
    if instruction.op == "composite" and instruction.name in NAMES:
        return _composite(instruction, types)
    if instruction.op == "dot_general":
        return _contraction(instruction, types, maker(instruction.operands[0]))
    return None


def _composite(made: Instruction, types: Types) -> Convolution:
    x, weight, *rest = made.operands
    hwio = made.attributes["layout"] == "hwio"
    roles = (0, 1, CHANNEL, OUTPUT) if hwio else (OUTPUT, CHANNEL, 0, 1)
    shape = types[weight].shape
    given = {name: made.attributes[name] for name in ("strides", "low", "high")}
    window = shape[:2] if hwio else shape[2:]
    found = window_dimensions(
        types[x].shape[1:-1], window, **given, window_dilation=made.attributes["dilation"]
    )
    return _made(types[x], (x, weight, *rest), found, shape, roles, made.attributes["groups"])


def _contraction(
    made: Instruction, types: Types, patches: Instruction | None
) -> Convolution | None:
    """A contraction of all windows and channels with one axis of outputs."""
    if patches is None or patches.op != "extract_patches":
        return None
    x, (lhs, weight) = patches.operands[0], made.operands
    if any(types[v].dtype != F32 for v in (x, weight)) or made.types[0].dtype != F32:
        return None
    spatial = types[x].rank - 2
    given = _contracted(made.attributes, types[lhs].rank, types[weight].rank, spatial)
    if given is None or not 1 <= spatial <= SPATIAL:
        return None
    geometry: dict[str, Any] = dict(patches.attributes.items())
    found = window_dimensions(types[x].shape[1:-1], **geometry)
    return _made(types[x], (x, weight), found, types[weight].shape, given, 1)


def _contracted(attributes: Attributes, lhs: int, rhs: int, spatial: int) -> tuple[int, ...] | None:
    """The roles of the right operand's axes where only its outputs are left over."""
    wanted = set(range(lhs - spatial - 1, lhs))
    if attributes["lhs_batch"] or set(attributes["lhs_contract"]) != wanted or rhs != spatial + 2:
        return None
    roles = [OUTPUT] * rhs
    for left, right in zip(attributes["lhs_contract"], attributes["rhs_contract"], strict=True):
        roles[right] = CHANNEL if left == lhs - 1 else left - (lhs - spatial - 1)
    return tuple(roles)


def _made(
    x: TensorType,
    operands: tuple[int, ...],
    found: tuple[WindowDimension, ...],
    weight: tuple[int, ...],
    roles: tuple[int, ...],
    groups: int,
) -> Convolution:
    spatial = len(found)
    depth, rows, columns = (*(WindowDimension(1, 1) for _ in range(SPATIAL - spatial)), *found)
    return Convolution(
        operands[0],
        operands[1],
        operands[2] if len(operands) > 2 else None,
        x.shape[0],
        x.shape[-1],
        weight[roles.index(OUTPUT)],
        groups,
        (depth, rows, columns),
        spatial,
        roles,
    )
