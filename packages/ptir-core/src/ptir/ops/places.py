"""Gather: parts of an operand at indices that another operand holds, along several axes at once.

The addressing (``axes``, ``batch``) is shared with the scatters.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ptir.ir.graph import Ref
from ptir.ops.classes import ANY, INDEX
from ptir.ops.indexing import take
from ptir.ops.layout import broadcast_to, reshape, transpose
from ptir.ops.movement import slice as slice_op
from ptir.ops.record import (
    Array,
    Attribute,
    BadCall,
    Call,
    bad,
    define,
    literal,
    op,
    refusals,
    sample,
)
from ptir.types import I32, TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_bf16, _i64 = partial(Array, "bf16"), partial(Array, "i64")


def addressed(call: Call) -> tuple[int, ...]:
    """The shape of what the places in ``indices`` address: batch, places, whole axes.

    Checks ``axes`` and ``batch`` against the first two operands.
    """
    operand, indices = call.types[:2]
    call.require(indices.rank > 0, "rank", "indices has no axis; its last one holds a place")
    axes, batch = call.axes("axes", operand.rank), call["batch"]
    most = min(operand.rank, indices.rank - 1)
    good = type(batch) is int and 0 <= batch <= most
    call.require(good, "batch", f"batch {batch!r} is not in 0 <= batch <= {most}")
    shared, found = operand.shape[:batch], indices.shape[:batch]
    differ = f"the first {batch} axis sizes differ: {list(shared)} and {list(found)}"
    call.require(shared == found, "batch", differ)
    clash = f"axes {axes} has a batch axis; each must be {batch} or more"
    call.require(all(axis >= batch for axis in axes), "clash", clash)
    width = f"the last axis of indices is {indices.shape[-1]} wide; one per axis of {axes}"
    call.require(indices.shape[-1] == len(axes), "width", f"{width} is {len(axes)}")
    whole = (n for a, n in enumerate(operand.shape) if a >= batch and a not in axes)
    return (*shared, *indices.shape[batch:-1], *whole)


def index_bounds(types: Any, attributes: Any) -> tuple[int, tuple[int, ...]]:
    """``bounds`` of the ops that are addressed by ``axes``."""
    return 1, tuple(types[0].shape[axis] - 1 for axis in attributes["axes"])


def _gather(call: Call) -> TensorType:
    operand = call.types[0]
    shape = addressed(call)
    empty = [axis for axis in call["axes"] if not operand.shape[axis]]
    nothing = f"axis {empty[:1]} is empty; there is nothing to clamp an index to"
    call.require(not empty, "empty", nothing)
    return operand.with_shape(shape)


def _gather_decomposition(
    operand: Ref, indices: Ref, *, axes: tuple[int, ...], batch: int
) -> Ref | None:
    """A take of rows by flat number; None where those numbers need more than 32 bits."""
    sizes = operand.type.shape
    order = (*range(batch), *axes)
    order += tuple(a for a in range(operand.type.rank) if a not in order)
    places = math.prod(sizes[:batch]) * math.prod(sizes[a] for a in axes)
    if places >= 2**31:
        return None
    lead = indices.type.shape[:-1]
    table = reshape(
        transpose(operand, permutation=order),
        shape=(places, *(sizes[a] for a in order[batch + len(axes) :])),
    )
    row = _batch_numbers(lead, batch)
    for number, axis in enumerate(axes):
        row = op("add")(
            op("mul")(row, _like(row, sizes[axis])), _column(indices, number, sizes[axis] - 1)
        )
    if not places:  # an empty batch: the result has no elements, and nothing can be taken
        value = op("constant")(value=literal(_zero(operand.type)))
        return broadcast_to(value, shape=(*lead, *table.type.shape[1:]))
    return take(table, row, axis=0)


def _batch_numbers(lead: tuple[int, ...], batch: int) -> Ref:
    """For each place, its number among the batches."""
    count = math.prod(lead[:batch])
    numbers = reshape(op("iota")(shape=(count,), dtype=I32, axis=0), shape=lead[:batch])
    if len(lead) == batch:
        return numbers
    ones = (*lead[:batch], *(1,) * (len(lead) - batch))
    return broadcast_to(reshape(numbers, shape=ones), shape=lead)


def _column(indices: Ref, number: int, last: int) -> Ref:
    """One entry of every place as i32, clamped to ``0..last``."""
    lead, end = indices.type.shape[:-1], indices.type.rank - 1
    starts, limits = (0,) * end, lead
    column = slice_op(indices, starts=(*starts, number), limits=(*limits, number + 1))
    flat = reshape(column, shape=lead)
    inside = op("minimum")(op("maximum")(flat, _like(flat, 0)), _like(flat, last))
    return inside if inside.type.dtype == I32 else op("cast")(inside, dtype=I32)


def _like(value: Ref, number: int) -> Ref:
    import numpy as np

    one = op("constant")(value=literal(np.array(number, value.type.dtype.numpy)))
    return broadcast_to(one, shape=value.type.shape)


def _zero(type: TensorType) -> Any:
    import numpy as np

    return np.zeros((), type.dtype.numpy)


def address_bad_calls(*more: str, **attributes: Any) -> tuple[BadCall, ...]:
    """The refused addresses of an op that takes an f32[2,3], indices and what ``more`` says."""

    def refused(label: str, indices: str, axes: Any, message: str, batch: int = 0) -> BadCall:
        given = {"axes": axes, "batch": batch} | attributes
        return bad(label, "f32[2,3]", indices, *more, message=message, **given)

    return (
        refused("rank", "i32[]", (0,), "indices has no axis; its last one holds a place"),
        refused("axes", "i32[4,2]", (0, 0), "axes (0, 0) repeats an axis"),
        refused("axes", "i32[4,1]", 0, "axes 0 is not a tuple of integers"),
        refused("axis", "i32[4,1]", (2,), "axes entry 2 is not an axis of rank 2 (0 <= axis < 2)"),
        refused("batch", "i32[2,1]", (1,), "batch 2 is not in 0 <= batch <= 1", 2),
        refused("batch", "i32[2,4,1]", (1,), "batch True is not in 0 <= batch <= 2", True),
        refused("batch", "i32[3,1]", (1,), "the first 1 axis sizes differ: [2] and [3]", 1),
        refused(
            "clash", "i32[2,4,1]", (0,), "axes (0,) has a batch axis; each must be 1 or more", 1
        ),
        refused(
            "width",
            "i32[4,2]",
            (1,),
            "the last axis of indices is 2 wide; one per axis of (1,) is 1",
        ),
    )


AXES = Attribute("axes", "operand axes that a place indexes, in the order of its entries")
BATCH = Attribute("batch", "how many leading axes operand and indices share", 0)

_TABLE = [[1, -2, 3], [4, 5, -6]]

gather = define(
    "gather",
    "operand indices",
    dtypes={"operand": ANY, "indices": INDEX},
    attributes=(AXES, BATCH),
    rule=_gather,
    reference=lambda xp, operand, indices, **attributes: xp.gather(operand, indices, **attributes),
    decomposition=_gather_decomposition,
    bounds=index_bounds,
    traits="movement",
    doc="""The parts of the operand at the places that ``indices`` holds along its last axis.

    A place has one index for each of ``axes``. The first ``batch`` axes of both operands run
    together; the result has them, then the other axes of ``indices`` but the last, then the
    operand's axes that are neither batch nor indexed, whole. An index outside clamps into range:
    negative to 0, too great to the last. The GatherND of ONNX is this with the first axes after
    ``batch``; take_along_axis is this with its axis moved last and all others as batch.""",
    samples=(
        sample(_f32(_TABLE), _i32([[0, 2], [1, 0]]), axes=(0, 1), gives=_f32([3, 4])),
        sample(_f32(_TABLE), _i32([[2, 0], [0, 1]]), axes=(1, 0), gives=_f32([3, 4])),
        sample(_i32(_TABLE), _u32([[[2], [1]]]), axes=(1,), gives=_i32([[[3, -6], [-2, 5]]])),
        sample(_i64([5, 2**62, -7]), _i64([[2**40], [-1]]), axes=(0,), gives=_i64([-7, 5])),
        sample(
            _f32(_TABLE),
            _i32([[[2], [0]], [[1], [1]]]),
            axes=(1,),
            batch=1,
            gives=_f32([[3, 1], [5, 5]]),
        ),
        sample(
            _bf16([[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
            _i32([[0], [1]]),
            axes=(2,),
            batch=1,
            gives=_bf16([[1, 3], [6, 8]]),
        ),
        sample(
            _f32([10, 20, 30]),
            _i32([[-1], [3], [-2147483648], [2147483647]]),
            axes=(0,),
            gives=_f32([10, 30, 10, 30]),
        ),
        sample(_f32([10, 20, 30]), _u32([[4294967295], [1]]), axes=(0,), gives=_f32([30, 20])),
        sample(_f32([1, 2]), _i32([]).reshaped(2, 0), axes=(), gives=_f32([[1, 2], [1, 2]])),
    ),
    bad_calls=(
        *refusals(
            "operand indices", {"operand": ANY, "indices": INDEX}, "f32[2]", "i32[3,1]", axes=(0,)
        ),
        *address_bad_calls(),
        bad(
            "empty",
            "f32[2,0]",
            "i32[3,1]",
            axes=(1,),
            message="axis [1] is empty; there is nothing to clamp an index to",
        ),
    ),
)
