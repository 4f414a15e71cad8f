"""Movement ops: parts, joins, paddings and repetitions; elements are moved, never changed."""

from __future__ import annotations

from functools import partial

from ptir.ir.graph import Ref
from ptir.ops.classes import ANY
from ptir.ops.layout import broadcast_to, reshape
from ptir.ops.record import Array, Attribute, Call, bad, define, refusals, sample
from ptir.types import TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_bool, _f16, _bf16 = partial(Array, "bool"), partial(Array, "f16"), partial(Array, "bf16")
_i8, _u8, _i64 = partial(Array, "i8"), partial(Array, "u8"), partial(Array, "i64")
_u64, _f64, _e4m3 = partial(Array, "u64"), partial(Array, "f64"), partial(Array, "f8e4m3fn")
_NAN = float("nan")

Sizes = tuple[int, ...]


def _slice(call: Call) -> TensorType:
    (operand,) = call.types
    starts = call.integers("starts", operand.rank)
    limits = call.integers("limits", operand.rank)
    ones = (1,) * operand.rank
    strides = ones if call["strides"] is None else call.integers("strides", operand.rank, 1)
    for axis, (start, limit, size) in enumerate(zip(starts, limits, operand.shape, strict=True)):
        message = f"axis {axis}: 0 <= start {start} <= limit {limit} <= size {size} does not hold"
        call.require(0 <= start <= limit <= size, "bounds", message)
    sizes = zip(starts, limits, strides, strict=True)
    return operand.with_shape(tuple(-((start - limit) // step) for start, limit, step in sizes))


slice = define(
    "slice",
    "operand",
    dtypes=ANY,
    attributes=(
        Attribute("starts", "first element of each axis"),
        Attribute("limits", "end of each axis, itself excluded"),
        Attribute("strides", "step of each axis; none: 1", None),
    ),
    rule=_slice,
    reference=lambda xp, operand, **attributes: xp.strided_slice(operand, **attributes),
    traits="movement view",
    doc="""Elements start, start + stride, ... below limit of each axis.""",
    samples=(
        sample(
            _f32([[1, 2, 3, 4], [5, -6, 7, 8], [9, 10, 11, 12]]),
            starts=(1, 0),
            limits=(3, 3),
            gives=_f32([[5, -6, 7], [9, 10, 11]]),
        ),
        sample(
            _i32([[1, 2, 3, 4], [5, -6, 7, 8], [9, 10, 11, 12]]),
            starts=(0, 1),
            limits=(3, 4),
            strides=(2, 2),
            gives=_i32([[2, 4], [10, 12]]),
        ),
        sample(_f16([1, -2, 3]), starts=(0,), limits=(3,), strides=(5,), gives=_f16([1])),
        sample(_bool([True, False]), starts=(2,), limits=(2,), gives=_bool([])),
        sample(_f32(3), starts=(), limits=(), gives=_f32(3)),
        sample(_i64([1, -(2**63), 3]), starts=(1,), limits=(3,), gives=_i64([-(2**63), 3])),
    ),
    bad_calls=(
        *refusals("operand", ANY, "f32[2]", starts=(0,), limits=(1,)),
        bad(
            "starts",
            "f32[2,3]",
            starts=(0,),
            limits=(2, 3),
            message="starts (0,) has 1 entries; one per axis is 2",
        ),
        bad(
            "limits",
            "f32[2]",
            starts=(0,),
            limits=(2, 2),
            message="limits (2, 2) has 2 entries; one per axis is 1",
        ),
        bad(
            "bounds",
            "f32[2,3]",
            starts=(0, 0),
            limits=(2, 4),
            message="axis 1: 0 <= start 0 <= limit 4 <= size 3 does not hold",
        ),
        bad(
            "bounds",
            "f32[3]",
            starts=(-1,),
            limits=(3,),
            message="axis 0: 0 <= start -1 <= limit 3 <= size 3 does not hold",
        ),
        bad(
            "strides",
            "f32[3]",
            starts=(0,),
            limits=(3,),
            strides=(0,),
            message="strides (0,) has an entry below 1",
        ),
    ),
)


def _concat(call: Call) -> TensorType:
    call.require(bool(call.types), "operands", "no operands given; at least one is needed")
    first = call.types[0]
    axis = call.axis(call["axis"], first.rank)
    for number, other in enumerate(call.types):
        message = (
            f"operand {number} is {other}; only the size of axis {axis} may differ from {first}"
        )
        same = (
            other.rank == first.rank
            and other.with_shape((*other.shape[:axis], first.shape[axis], *other.shape[axis + 1 :]))
            == first
        )
        call.require(same, "match", message)
    total = sum(t.shape[axis] for t in call.types)
    return first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))


concat = define(
    "concat",
    "operands*",
    dtypes=ANY,
    attributes=(Attribute("axis", "the axis along which operands follow each other"),),
    rule=_concat,
    reference=lambda xp, *operands, axis: xp.concat(*operands, axis=axis),
    traits="movement",
    doc="""The operands, of one dtype, one after another along an axis.""",
    samples=(
        sample(
            _f32([[1, -2], [3, 4]]),
            _f32([[5], [-6]]),
            _f32([[7], [8]]),
            axis=1,
            gives=_f32([[1, -2, 5, 7], [3, 4, -6, 8]]),
        ),
        sample(
            _i32([[1, 2]]), _i32([[3, 4], [5, 6]]), axis=0, gives=_i32([[1, 2], [3, 4], [5, 6]])
        ),
        sample(_bf16([]), _bf16([1.5]), axis=0, gives=_bf16([1.5])),
        sample(_u32([4294967295]), axis=0, gives=_u32([4294967295])),
        sample(_e4m3([-0.5]), _e4m3([448, 1]), axis=0, gives=_e4m3([-0.5, 448, 1])),
        sample(_u8([[1], [255]]), _u8([[3], [4]]), axis=1, gives=_u8([[1, 3], [255, 4]])),
    ),
    bad_calls=(
        *refusals("operands*", ANY, "f32[2]", "f32[2]", axis=0),
        bad("operands", axis=0, message="no operands given; at least one is needed"),
        bad(
            "axis",
            "f32[2]",
            "f32[2]",
            axis=1,
            message="axis 1 is not an axis of rank 1 (0 <= axis < 1)",
        ),
        bad(
            "match",
            "f32[2,3]",
            "f32[2,4]",
            axis=0,
            message="operand 1 is f32[2,4]; only the size of axis 0 may differ from f32[2,3]",
        ),
        bad(
            "match",
            "f32[2]",
            "i32[2]",
            axis=0,
            message="operand 1 is i32[2]; only the size of axis 0 may differ from f32[2]",
        ),
        bad(
            "match",
            "f32[2]",
            "f32[2]",
            "f32[2,1]",
            axis=0,
            message="operand 2 is f32[2,1]; only the size of axis 0 may differ from f32[2]",
        ),
    ),
)


def _pad(call: Call) -> TensorType:
    operand, value = call.types
    scalar = operand.with_shape(())
    call.require(value == scalar, "value", f"value has type {value}; {scalar} is needed")
    low, high = call.integers("low", operand.rank), call.integers("high", operand.rank)
    zeros = (0,) * operand.rank
    gaps = zeros if call["interior"] is None else call.integers("interior", operand.rank, 0)
    shape = tuple(
        before + size + max(size - 1, 0) * gap + after
        for before, size, gap, after in zip(low, operand.shape, gaps, high, strict=True)
    )
    message = f"low {low} and high {high} crop more than there is: the shape would be {shape}"
    call.require(all(size >= 0 for size in shape), "size", message)
    return operand.with_shape(shape)


def _pad_decomposition(
    operand: Ref, value: Ref, *, low: Sizes, high: Sizes, interior: Sizes | None
) -> Ref:
    """Axis by axis: blocks of the value between and around the elements, then what is cropped."""
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        if interior and interior[axis]:
            operand = _spread(operand, value, axis, interior[axis])
        parts = [_block(operand, value, axis, n) for n in (max(before, 0), max(after, 0))]
        operand = concat(parts[0], operand, parts[1], axis=axis)
        crop = (max(-before, 0), operand.type.shape[axis] - max(-after, 0))
        operand = _part(operand, axis, *crop)
    return operand


def _block(operand: Ref, value: Ref, axis: int, size: int) -> Ref:
    """``size`` times the value along an axis, as large as ``operand`` along the others."""
    shape = operand.type.shape
    return broadcast_to(value, shape=(*shape[:axis], size, *shape[axis + 1 :]))


def _part(operand: Ref, axis: int, start: int, limit: int) -> Ref:
    """The elements ``start`` to ``limit`` of an axis."""
    shape = operand.type.shape
    starts, limits = [0] * len(shape), [*shape]
    starts[axis], limits[axis] = start, limit
    return slice(operand, starts=tuple(starts), limits=tuple(limits))


def _spread(operand: Ref, value: Ref, axis: int, gap: int) -> Ref:
    """``gap`` times the value between neighbours of an axis."""
    shape = operand.type.shape
    apart = reshape(operand, shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
    followed = concat(apart, _block(apart, value, axis + 1, gap), axis=axis + 1)
    size = shape[axis] * (gap + 1)
    joined = reshape(followed, shape=(*shape[:axis], size, *shape[axis + 1 :]))
    return _part(joined, axis, 0, max(size - gap, 0))


pad = define(
    "pad",
    "operand value",
    dtypes=ANY,
    attributes=(
        Attribute("low", "elements added before each axis; negative: removed"),
        Attribute("high", "elements added after each axis; negative: removed"),
        Attribute("interior", "elements added between neighbours of each axis; none: 0", None),
    ),
    rule=_pad,
    reference=lambda xp, operand, value, **attributes: xp.pad(operand, value, **attributes),
    decomposition=_pad_decomposition,
    traits="movement",
    doc="""The operand with ``value``, a scalar, around it and between its elements.

    The interior is added first; then negative low and high crop, also what was just added.""",
    samples=(
        sample(
            _f32([[1, -2, 3], [4, 5, -6]]),
            _f32(9),
            low=(1, 0),
            high=(0, 2),
            gives=_f32([[9, 9, 9, 9, 9], [1, -2, 3, 9, 9], [4, 5, -6, 9, 9]]),
        ),
        sample(
            _i32([1, -2, 3]),
            _i32(0),
            low=(1,),
            high=(2,),
            interior=(2,),
            gives=_i32([0, 1, 0, 0, -2, 0, 0, 3, 0, 0]),
        ),
        sample(
            _f32([[1, 2, 3, 4], [5, 6, 7, 8]]),
            _f32(0),
            low=(0, -1),
            high=(1, -2),
            gives=_f32([[2], [6], [0]]),
        ),
        sample(
            _f16([1, 2, 3]), _f16(-0.0), low=(-2,), high=(-1,), interior=(1,), gives=_f16([2, -0.0])
        ),
        sample(_f32([1, 2]), _f32(7), low=(-3,), high=(4,), gives=_f32([7, 7, 7])),
        sample(_bf16([]), _bf16(1), low=(1,), high=(1,), interior=(3,), gives=_bf16([1, 1])),
        sample(_bool(True), _bool(False), low=(), high=(), gives=_bool(True)),
        sample(_i8([1, -128]), _i8(-1), low=(2,), high=(-1,), gives=_i8([-1, -1, 1])),
        sample(_f64([0.1]), _f64(-0.0), low=(0,), high=(1,), gives=_f64([0.1, -0.0])),
    ),
    bad_calls=(
        *refusals("operand value", ANY, "f32[2]", "f32[]", low=(0,), high=(1,)),
        bad(
            "value",
            "f32[2]",
            "f32[1]",
            low=(0,),
            high=(0,),
            message="value has type f32[1]; f32[] is needed",
        ),
        bad(
            "value",
            "f32[2]",
            "i32[]",
            low=(0,),
            high=(0,),
            message="value has type i32[]; f32[] is needed",
        ),
        bad(
            "low",
            "f32[2,3]",
            "f32[]",
            low=(0,),
            high=(0, 0),
            message="low (0,) has 1 entries; one per axis is 2",
        ),
        bad(
            "high",
            "f32[2,3]",
            "f32[]",
            low=(0, 0),
            high=(0, 0, 0),
            message="high (0, 0, 0) has 3 entries; one per axis is 2",
        ),
        bad(
            "interior",
            "f32[2]",
            "f32[]",
            low=(0,),
            high=(0,),
            interior=(-1,),
            message="interior (-1,) has an entry below 0",
        ),
        bad(
            "size",
            "f32[2]",
            "f32[]",
            low=(-2,),
            high=(-1,),
            message="low (-2,) and high (-1,) crop more than there is: the shape would be (-1,)",
        ),
    ),
)


def _tile(call: Call) -> TensorType:
    (operand,) = call.types
    repeats = call.integers("repeats", operand.rank, 0)
    return operand.with_shape(tuple(n * r for n, r in zip(operand.shape, repeats, strict=True)))


def _tile_decomposition(operand: Ref, *, repeats: tuple[int, ...]) -> Ref:
    pairs = tuple(zip(repeats, operand.type.shape, strict=True))
    lined = reshape(operand, shape=tuple(n for _, size in pairs for n in (1, size)))
    spread = broadcast_to(lined, shape=tuple(n for pair in pairs for n in pair))
    return reshape(spread, shape=tuple(times * size for times, size in pairs))


tile = define(
    "tile",
    "operand",
    dtypes=ANY,
    attributes=(Attribute("repeats", "how often each axis is repeated"),),
    rule=_tile,
    reference=lambda xp, operand, *, repeats: xp.tile(operand, repeats=repeats),
    decomposition=_tile_decomposition,
    traits="movement",
    doc="""The whole operand repeated along each axis.""",
    samples=(
        sample(
            _f32([[1, -2, 3], [4, 5, -6]]),
            repeats=(1, 2),
            gives=_f32([[1, -2, 3, 1, -2, 3], [4, 5, -6, 4, 5, -6]]),
        ),
        sample(_u32([[1, 2]]), repeats=(3, 1), gives=_u32([[1, 2], [1, 2], [1, 2]])),
        sample(_f16([1, 2]), repeats=(0,), gives=_f16([])),
        sample(_f32(_NAN), repeats=(), gives=_f32(_NAN)),
        sample(_u64([2**64 - 1, 1]), repeats=(2,), gives=_u64([2**64 - 1, 1, 2**64 - 1, 1])),
    ),
    bad_calls=(
        *refusals("operand", ANY, "f32[2]", repeats=(2,)),
        bad(
            "repeats",
            "f32[2,3]",
            repeats=(2,),
            message="repeats (2,) has 1 entries; one per axis is 2",
        ),
        bad("repeats", "f32[2]", repeats=(-1,), message="repeats (-1,) has an entry below 0"),
    ),
)
