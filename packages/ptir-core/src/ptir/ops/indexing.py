"""Indexing ops along axes: which slice or window is decided by an operand.

Indices clamp into range; under PTIR_CHECK_INDICES=1 what would be clamped is an error.
"""

from __future__ import annotations

from functools import partial

from ptir.ir.graph import Ref
from ptir.ops.classes import ANY, INDEX
from ptir.ops.fill import full, highest, positions, scalar
from ptir.ops.record import Array, Attribute, Call, bad, define, op, refusals, sample
from ptir.types import I32, I64, TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_bf16, _i8, _i64 = partial(Array, "bf16"), partial(Array, "i8"), partial(Array, "i64")
_u64, _e4m3 = partial(Array, "u64"), partial(Array, "f8e4m3fn")


def _take(call: Call) -> TensorType:
    operand, indices = call.types
    axis = call.axis(call["axis"], operand.rank)
    empty = f"axis {axis} is empty; there is nothing to clamp an index to"
    call.require(operand.shape[axis] > 0, "empty", empty)
    return operand.with_shape((*operand.shape[:axis], *indices.shape, *operand.shape[axis + 1 :]))


take = define(
    "take",
    "operand indices",
    dtypes={"operand": ANY, "indices": INDEX},
    attributes=(Attribute("axis", "the axis that is indexed"),),
    rule=_take,
    reference=lambda xp, operand, indices, *, axis: xp.take(operand, indices, axis=axis),
    bounds=lambda types, attributes: (1, (types[0].shape[attributes["axis"]] - 1,)),
    traits="movement",
    doc="""Slices of an axis by index; the axes of ``indices`` take the place of the axis.

    An index outside clamps into range: negative to 0, too great to the last.""",
    samples=(
        sample(
            _f32([[1, -2, 3], [4, 5, -6]]),
            _i32([2, 0, 0, 1]),
            axis=1,
            gives=_f32([[3, 1, 1, -2], [-6, 4, 4, 5]]),
        ),
        sample(
            _i32([[1, 2], [3, 4], [5, 6]]),
            _u32([[2], [0]]),
            axis=0,
            gives=_i32([[[5, 6]], [[1, 2]]]),
        ),
        sample(
            _f32([[[1], [2]], [[3], [4]]]),
            _i32([[1, 0, 1]]),
            axis=1,
            gives=_f32([[[[2], [1], [2]]], [[[4], [3], [4]]]]),
        ),
        sample(
            _f32([10, 20, 30]),
            _i32([-1, 3, -2147483648, 2147483647]),
            axis=0,
            gives=_f32([10, 30, 10, 30]),
        ),
        sample(_bf16([1, 2]), _u32(4294967295), axis=0, gives=_bf16(2)),
        sample(_i8([1, -2, 3]), _i32([-128, 1, 127]), axis=0, gives=_i8([1, -2, 3])),
        sample(_u64([5, 2**63]), _i64([2**40, -1]), axis=0, gives=_u64([2**63, 5])),
        sample(_e4m3([0.5, 448]), _i64([2**40, -1]), axis=0, gives=_e4m3([448, 0.5])),
    ),
    bad_calls=(
        *refusals(
            "operand indices", {"operand": ANY, "indices": INDEX}, "f32[2]", "i32[3]", axis=0
        ),
        bad(
            "axis",
            "f32[2]",
            "i32[1]",
            axis=1,
            message="axis 1 is not an axis of rank 1 (0 <= axis < 1)",
        ),
        bad(
            "empty",
            "f32[2,0]",
            "i32[1]",
            axis=1,
            message="axis 1 is empty; there is nothing to clamp an index to",
        ),
    ),
)


def _require_starts(call: Call) -> None:
    found, rank = call.types[-1], call.types[0].rank
    wanted = found.with_shape((rank,))
    message = f"starts has type {found}; {wanted} is needed, one per axis"
    call.require(found == wanted, "starts", message)


def _bounded(starts: Ref, axis: int, last: int) -> Ref:
    """The start of one axis, a scalar clamped to ``0..last``."""
    one = op("slice")(starts, starts=(axis,), limits=(axis + 1,))
    start = op("reshape")(one, shape=())
    index = start.type.dtype
    raised = op("maximum")(start, scalar(0, index))
    return op("minimum")(raised, scalar(min(last, highest(index)), index))


def _dynamic_slice_decomposition(operand: Ref, starts: Ref, *, sizes: tuple[int, ...]) -> Ref:
    """One ``take`` for each axis that the window does not span."""
    for axis, (size, whole) in enumerate(zip(sizes, operand.type.shape, strict=True)):
        if size < whole:
            start = op("broadcast_to")(_bounded(starts, axis, whole - size), shape=(size,))
            indices = op("add")(start, positions((size,), 0, start.type.dtype))
            operand = op("take")(operand, indices, axis=axis)
    return operand


def _dynamic_update_slice_decomposition(operand: Ref, update: Ref, starts: Ref) -> Ref:
    """Each place takes its own element or one of the update's, all in one flat line."""
    if update.type.size == 0 or update.type == operand.type:
        return operand if update.type.size == 0 else update
    number = I32 if operand.type.size + update.type.size <= 2**31 else I64
    shape = operand.type.shape
    inside, within = None, full(0, shape, number)
    for axis, size in enumerate(update.type.shape):
        start = _bounded(starts, axis, shape[axis] - size)
        start = op("broadcast_to")(op("cast")(start, dtype=number), shape=shape)
        offset = op("sub")(positions(shape, axis, number), start)
        after = op("compare")(offset, full(0, shape, number), direction="ge")
        before = op("compare")(offset, full(size, shape, number), direction="lt")
        here = op("and")(after, before)
        inside = here if inside is None else op("and")(inside, here)
        within = op("add")(op("mul")(within, full(size, shape, number)), offset)
    count, own = update.type.size, op("iota")(shape=(operand.type.size,), dtype=number, axis=0)
    kept = op("add")(op("reshape")(own, shape=shape), full(count, shape, number))
    flat = [op("reshape")(x, shape=(x.type.size,)) for x in (update, operand)]
    assert inside is not None  # a scalar's update has the operand's type
    return op("take")(op("concat")(*flat, axis=0), op("select")(inside, within, kept), axis=0)


def _last_starts(operand: TensorType, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n - size for n, size in zip(operand.shape, sizes, strict=True))


def _dynamic_slice(call: Call) -> TensorType:
    operand = call.types[0]
    _require_starts(call)
    sizes = call.integers("sizes", operand.rank, 0)
    larger = f"a window of {sizes} does not fit into {operand}"
    call.require(all(n <= m for n, m in zip(sizes, operand.shape, strict=True)), "fit", larger)
    return operand.with_shape(sizes)


dynamic_slice = define(
    "dynamic_slice",
    "operand starts",
    dtypes={"operand": ANY, "starts": INDEX},
    attributes=(Attribute("sizes", "axis sizes of the window"),),
    rule=_dynamic_slice,
    reference=lambda xp, operand, starts, *, sizes: xp.dynamic_slice(operand, starts, sizes=sizes),
    decomposition=_dynamic_slice_decomposition,
    bounds=lambda types, attributes: (1, _last_starts(types[0], attributes["sizes"])),
    traits="movement",
    doc="""The window of ``sizes`` that begins at ``starts``, one start per axis.

    A start outside moves the window so that it fits: start clamps to 0 .. axis size - window.""",
    samples=(
        sample(
            _f32([[1, 2, 3, 4], [5, -6, 7, 8], [9, 10, 11, 12]]),
            _i32([1, 2]),
            sizes=(2, 1),
            gives=_f32([[7], [11]]),
        ),
        sample(
            _i32([[1, 2, 3, 4], [5, -6, 7, 8], [9, 10, 11, 12]]),
            _i32([2, -5]),
            sizes=(2, 3),
            gives=_i32([[5, -6, 7], [9, 10, 11]]),
        ),
        sample(_bf16([1, 2]), _i32([2147483647]), sizes=(1,), gives=_bf16([2])),
        sample(_f32(5), _i32([]), sizes=(), gives=_f32(5)),
        sample(_u64([1, 2**64 - 1, 3]), _i32([1]), sizes=(2,), gives=_u64([2**64 - 1, 3])),
    ),
    bad_calls=(
        *refusals(
            "operand starts", {"operand": ANY, "starts": INDEX}, "f32[2]", "i32[1]", sizes=(1,)
        ),
        bad(
            "starts",
            "f32[2,3]",
            "i32[1]",
            sizes=(1, 1),
            message="starts has type i32[1]; i32[2] is needed, one per axis",
        ),
        bad(
            "sizes",
            "f32[2,3]",
            "i32[2]",
            sizes=(1,),
            message="sizes (1,) has 1 entries; one per axis is 2",
        ),
        bad("sizes", "f32[2]", "i32[1]", sizes=(-1,), message="sizes (-1,) has an entry below 0"),
        bad(
            "fit",
            "f32[2,3]",
            "i32[2]",
            sizes=(1, 4),
            message="a window of (1, 4) does not fit into f32[2,3]",
        ),
    ),
)


def _dynamic_update_slice(call: Call) -> TensorType:
    operand, update, _ = call.types
    _require_starts(call)
    fits = (
        update.dtype == operand.dtype
        and update.rank == operand.rank
        and all(n <= m for n, m in zip(update.shape, operand.shape, strict=True))
    )
    call.require(fits, "fit", f"update {update} does not fit into {operand}: dtype, rank and sizes")
    return operand


dynamic_update_slice = define(
    "dynamic_update_slice",
    "operand update starts",
    dtypes={"operand": ANY, "update": ANY, "starts": INDEX},
    rule=_dynamic_update_slice,
    reference=lambda xp, operand, update, starts: xp.dynamic_update_slice(operand, update, starts),
    decomposition=_dynamic_update_slice_decomposition,
    bounds=lambda types, attributes: (2, _last_starts(types[0], types[1].shape)),
    traits="movement",
    doc="""The operand with ``update`` written where a window of its size begins at ``starts``.

    A start outside moves the window so that it fits: start clamps to 0 .. axis size - window.""",
    samples=(
        sample(
            _f32([[1, 2, 3], [4, 5, 6]]),
            _f32([[-8, -9]]),
            _i32([0, 1]),
            gives=_f32([[1, -8, -9], [4, 5, 6]]),
        ),
        sample(
            _i32([[1, 2, 3], [4, 5, 6]]),
            _i32([[-8, -9]]),
            _i32([7, -1]),
            gives=_i32([[1, 2, 3], [-8, -9, 6]]),
        ),
        sample(_bf16([1, 2, 3]), _bf16([4, 5]), _i32([2]), gives=_bf16([1, 4, 5])),
        sample(_f32([1, 2]), _f32([]), _i32([1]), gives=_f32([1, 2])),
        sample(_e4m3([1, 2, 3]), _e4m3([-448]), _i32([1]), gives=_e4m3([1, -448, 3])),
        sample(_f32(5), _f32(-6), _i32([]), gives=_f32(-6)),
        sample(_u64([1, 2]), _u64([2**64 - 1]), _i32([9]), gives=_u64([1, 2**64 - 1])),
    ),
    bad_calls=(
        *refusals(
            "operand update starts",
            {"operand": ANY, "update": ANY, "starts": INDEX},
            "f32[2]",
            "f32[1]",
            "i32[1]",
        ),
        bad(
            "starts",
            "f32[2]",
            "f32[1]",
            "i32[]",
            message="starts has type i32[]; i32[1] is needed, one per axis",
        ),
        bad(
            "fit",
            "f32[2]",
            "i32[1]",
            "i32[1]",
            message="update i32[1] does not fit into f32[2]: dtype, rank and sizes",
        ),
        bad(
            "fit",
            "f32[2,2]",
            "f32[1]",
            "i32[2]",
            message="update f32[1] does not fit into f32[2,2]: dtype, rank and sizes",
        ),
        bad(
            "fit",
            "f32[2]",
            "f32[3]",
            "i32[1]",
            message="update f32[3] does not fit into f32[2]: dtype, rank and sizes",
        ),
    ),
)
