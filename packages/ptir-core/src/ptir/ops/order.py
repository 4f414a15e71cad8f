"""Order ops: where extremes are, and lines in order. NaN rules are the same for every float."""

from __future__ import annotations

from functools import partial
from typing import Any

from ptir.ir.graph import Ref
from ptir.ops.classes import NUMERIC
from ptir.ops.movement import slice as slice_op
from ptir.ops.record import Array, Attribute, Call, bad, define, op, refusals, sample
from ptir.types import I32, TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_f16, _bf16, _f64 = partial(Array, "f16"), partial(Array, "bf16"), partial(Array, "f64")
_i8, _u8, _i64, _u64 = (partial(Array, name) for name in ("i8", "u8", "i64", "u64"))
_NAN, _INF = float("nan"), float("inf")
_NO_AXIS = "axis 0 is not an axis of rank 0 (0 <= axis < 0)"


def _arg_extreme(call: Call) -> TensorType:
    (operand,) = call.types
    axis = call.axis(call["axis"], operand.rank)
    empty = f"axis {axis} is empty; an extreme needs at least one element"
    call.require(operand.shape[axis] > 0, "empty", empty)
    return TensorType(I32, operand.shape[:axis] + operand.shape[axis + 1 :])


_AXIS = Attribute("axis", "the axis that is searched")
_ARG_BAD_CALLS = (
    *refusals("operand", NUMERIC, "f32[3]", axis=0),
    bad("axis", "f32[2]", axis=1, message="axis 1 is not an axis of rank 1 (0 <= axis < 1)"),
    bad("axis", "f32[]", axis=0, message=_NO_AXIS),
    bad(
        "empty",
        "f32[2,0]",
        axis=1,
        message="axis 1 is empty; an extreme needs at least one element",
    ),
)

arg_max = define(
    "arg_max",
    "operand",
    dtypes=NUMERIC,
    attributes=(_AXIS,),
    rule=_arg_extreme,
    reference=lambda xp, operand, *, axis: xp.arg_max(operand, axis=axis),
    traits="reduction",
    doc="""i32 index along an axis of the first NaN, else of the first greatest element.

    The axis is dropped. -0 and +0 count as equal, so the first of them is found.""",
    samples=(
        sample(_f32([[-3, -1, -2], [5, 5, 4]]), axis=1, gives=_i32([1, 0])),
        sample(_f32([[-3, -1, -2], [5, -4, -2]]), axis=0, gives=_i32([1, 0, 0])),
        sample(_f32([1, _NAN, _INF, _NAN]), axis=0, gives=_i32(1)),
        sample(_f32([-1, -0.0, 0.0]), axis=0, gives=_i32(1)),
        sample(_u32([1, 4294967295, 2]), axis=0, gives=_i32(1)),
        sample(_i32([-5, -2147483648, -1, -1]), axis=0, gives=_i32(2)),
        sample(_u64([2**63, 2**63 + 1, 2**63]), axis=0, gives=_i32(1)),
        sample(_i64([-(2**53) - 1, -(2**53), -(2**63)]), axis=0, gives=_i32(1)),
        sample(_i8([-128, 127, 3]), axis=0, gives=_i32(1)),
        sample(_bf16([1, _INF, _NAN]), axis=0, gives=_i32(2)),
        sample(_f64([1, 1.0000000000000002]), axis=0, gives=_i32(1)),
    ),
    bad_calls=_ARG_BAD_CALLS,
)


def _arg_min_decomposition(operand: Ref, *, axis: int) -> Ref:
    """``neg`` reverses the order of floats exactly, bitwise ``not`` that of integers."""
    flip = op("neg") if operand.type.dtype.is_float else op("not")
    return arg_max(flip(operand), axis=axis)


arg_min = define(
    "arg_min",
    "operand",
    dtypes=NUMERIC,
    attributes=(_AXIS,),
    rule=_arg_extreme,
    reference=lambda xp, operand, *, axis: xp.arg_min(operand, axis=axis),
    decomposition=_arg_min_decomposition,
    traits="reduction",
    doc="""i32 index along an axis of the first NaN, else of the first least element.

    The axis is dropped. -0 and +0 count as equal, so the first of them is found.""",
    samples=(
        sample(_f32([[3, 1, 2], [-5, -5, 4]]), axis=1, gives=_i32([1, 0])),
        sample(_f32([[3, 1, 2], [-5, 4, 2]]), axis=0, gives=_i32([1, 0, 0])),
        sample(_f32([1, -_INF, _NAN, _NAN]), axis=0, gives=_i32(2)),
        sample(_f32([1, 0.0, -0.0]), axis=0, gives=_i32(1)),
        sample(_u32([4294967295, 1, 2147483648, 0]), axis=0, gives=_i32(3)),
        sample(_i32([0, -2147483648, 2147483647, -1]), axis=0, gives=_i32(1)),
        sample(_u64([2**63 + 1, 2**63, 2**64 - 1]), axis=0, gives=_i32(1)),
        sample(_i64([-(2**63) + 1, -(2**63), 0]), axis=0, gives=_i32(1)),
        sample(_u8([3, 0, 255]), axis=0, gives=_i32(1)),
        sample(_f16([1, -_INF, _NAN]), axis=0, gives=_i32(2)),
    ),
    bad_calls=_ARG_BAD_CALLS,
)


def _sort(call: Call) -> tuple[TensorType, TensorType]:
    (operand,) = call.types
    call.axis(call["axis"], operand.rank)
    down = call["descending"]
    call.require(isinstance(down, bool), "descending", f"descending {down!r} is not a bool")
    return operand, operand.with_dtype(I32)


sort = define(
    "sort",
    "operand",
    dtypes=NUMERIC,
    attributes=(
        Attribute("axis", "the axis whose lines are sorted"),
        Attribute("descending", "greatest first", False),
    ),
    rule=_sort,
    reference=lambda xp, operand, **attributes: xp.sort(operand, **attributes),
    traits="order",
    profile="sort",
    doc="""Each line along an axis in order, and the i32 indices its elements came from.

    Stable in both directions: equal elements keep their order, and -0 equals +0. NaN comes last in
    both directions. Elements are moved, never changed.""",
    samples=(
        sample(
            _f32([[3, -1, 2], [-5, 0, -5]]),
            axis=1,
            gives=(_f32([[-1, 2, 3], [-5, -5, 0]]), _i32([[1, 2, 0], [0, 2, 1]])),
        ),
        sample(
            _f32([[3, -1, 2], [-5, 0, -5]]),
            axis=0,
            descending=True,
            gives=(_f32([[3, 0, 2], [-5, -1, -5]]), _i32([[0, 1, 0], [1, 0, 1]])),
        ),
        sample(
            _f32([1, _NAN, -_INF, 1, _NAN, 0.0, -0.0]),
            axis=0,
            gives=(_f32([-_INF, 0.0, -0.0, 1, 1, _NAN, _NAN]), _i32([2, 5, 6, 0, 3, 1, 4])),
        ),
        sample(
            _f32([1, _NAN, -_INF, 1, _NAN, 0.0, -0.0]),
            axis=0,
            descending=True,
            gives=(_f32([1, 1, 0.0, -0.0, -_INF, _NAN, _NAN]), _i32([0, 3, 5, 6, 2, 1, 4])),
        ),
        sample(
            _i32([0, -2147483648, 7, -2147483648]),
            axis=0,
            descending=True,
            gives=(_i32([7, 0, -2147483648, -2147483648]), _i32([2, 0, 1, 3])),
        ),
        sample(
            _u32([0, 4294967295, 2, 0]),
            axis=0,
            descending=True,
            gives=(_u32([4294967295, 2, 0, 0]), _i32([1, 2, 0, 3])),
        ),
        sample(
            _i64([2**53 + 1, -(2**63), 2**53]),
            axis=0,
            gives=(_i64([-(2**63), 2**53, 2**53 + 1]), _i32([1, 2, 0])),
        ),
        sample(
            _u64([1, 2**63, 2**63 + 1, 1]),
            axis=0,
            descending=True,
            gives=(_u64([2**63 + 1, 2**63, 1, 1]), _i32([2, 1, 0, 3])),
        ),
        sample(
            _i8([0, -128, 127, 0]),
            axis=0,
            descending=True,
            gives=(_i8([127, 0, 0, -128]), _i32([2, 0, 3, 1])),
        ),
        sample(
            _bf16([_NAN, 1, -_INF, 1]),
            axis=0,
            gives=(_bf16([-_INF, 1, 1, _NAN]), _i32([2, 1, 3, 0])),
        ),
        sample(
            _f16([_NAN, 1, 65504, -0.0]),
            axis=0,
            descending=True,
            gives=(_f16([65504, 1, -0.0, _NAN]), _i32([2, 1, 3, 0])),
        ),
    ),
    bad_calls=(
        *refusals("operand", NUMERIC, "f32[3]", axis=0),
        bad("axis", "f32[]", axis=0, message=_NO_AXIS),
        bad("descending", "f32[2]", axis=0, descending=1, message="descending 1 is not a bool"),
    ),
)


def _top_k(call: Call) -> tuple[TensorType, TensorType]:
    (operand,) = call.types
    call.require(operand.rank > 0, "rank", "operand has no axis; top_k looks along the last one")
    k, size = call["k"], operand.shape[-1]
    call.require(type(k) is int and 0 <= k <= size, "k", f"k {k} is not in 0 <= k <= {size}")
    values = operand.with_shape((*operand.shape[:-1], k))
    return values, values.with_dtype(I32)


def _top_k_decomposition(operand: Ref, *, k: int) -> Any:
    rank, shape = operand.type.rank, operand.type.shape
    ordered = sort.multi(operand, axis=rank - 1, descending=True)
    window = {"starts": (0,) * rank, "limits": (*shape[:-1], k)}
    return tuple(slice_op(part, **window) for part in ordered)


top_k = define(
    "top_k",
    "operand",
    dtypes=NUMERIC,
    attributes=(Attribute("k", "how many elements of each line are kept"),),
    rule=_top_k,
    reference=lambda xp, operand, *, k: xp.top_k(operand, k=k),
    decomposition=_top_k_decomposition,
    traits="order",
    profile="sort",
    doc="""The k greatest elements of each line of the last axis, greatest first, and i32 indices.

    Equal elements come by lowest index, -0 equals +0, and NaN comes last: the first k of a
    descending sort.""",
    samples=(
        sample(
            _f32([[3, -1, 2, 3], [-5, -7, -5, -4]]),
            k=2,
            gives=(_f32([[3, 3], [-4, -5]]), _i32([[0, 3], [3, 0]])),
        ),
        sample(
            _f32([_NAN, 1, 0.0, -0.0, _NAN]),
            k=4,
            gives=(_f32([1, 0.0, -0.0, _NAN]), _i32([1, 2, 3, 0])),
        ),
        sample(_u32([5, 4294967295, 5]), k=3, gives=(_u32([4294967295, 5, 5]), _i32([1, 0, 2]))),
        sample(_i32([[1, 2]]), k=0, gives=(_i32([[]]), _i32([[]]))),
        sample(_u8([5, 255, 5]), k=2, gives=(_u8([255, 5]), _i32([1, 0]))),
        sample(_i64([2**53, 2**53 + 1, -1]), k=2, gives=(_i64([2**53 + 1, 2**53]), _i32([1, 0]))),
        sample(_f64([_NAN, -1, 1]), k=2, gives=(_f64([1, -1]), _i32([2, 1]))),
        sample(_bf16([-2, 1, -1, 1]), k=3, gives=(_bf16([1, 1, -1]), _i32([1, 3, 2]))),
    ),
    bad_calls=(
        *refusals("operand", NUMERIC, "f32[3]", k=2),
        bad("rank", "f32[]", k=1, message="operand has no axis; top_k looks along the last one"),
        bad("k", "f32[5,3]", k=4, message="k 4 is not in 0 <= k <= 3"),
        bad("k", "f32[5,3]", k=-1, message="k -1 is not in 0 <= k <= 3"),
    ),
)
