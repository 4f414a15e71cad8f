"""Reduction ops: folds, positions of extremes, running folds and orders along an axis."""

from __future__ import annotations

from functools import partial
from typing import Any

from ptir.ir.graph import Ref
from ptir.ops.movement import slice as slice_op
from ptir.ops.record import BITS, NUMERIC, Array, Attribute, Call, bad, define, op, refusals, sample
from ptir.types import BOOL, I32, TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_bool = partial(Array, "bool")
_NAN, _INF = float("nan"), float("inf")
_NO_AXIS = "axis 0 is not an axis of rank 0 (0 <= axis < 0)"


def _reduce(call: Call) -> TensorType:
    (operand,) = call.types
    axes = call.axes("axes", operand.rank)
    fits = (call["kind"] in ("any", "all")) == (operand.dtype == BOOL)
    takes = "bool takes any and all, numbers take sum, prod, max and min"
    call.require(fits, "kind", f"kind {call['kind']} does not take {operand.dtype}; {takes}")
    return operand.with_shape(tuple(n for a, n in enumerate(operand.shape) if a not in axes))


reduce = define(
    "reduce",
    "operand",
    dtypes=NUMERIC | BITS,
    attributes=(
        Attribute("axes", "axes that are folded away"),
        Attribute("kind", "the fold", choices=("sum", "prod", "max", "min", "any", "all")),
    ),
    rule=_reduce,
    meaning=lambda xp, operand, *, axes, kind: xp.reduce(operand, axes=axes, kind=kind),
    traits="reduction",
    accuracy="dot",
    doc="""Fold axes away; the others keep their order.

    Starts from the identity, so folding nothing gives 0, 1, -inf or the lowest integer (max), +inf
    or the highest (min), false (any), true (all). Integers keep their dtype and wrap. Max and min
    are exact, propagate NaN and order -0 < +0. The order of float sums and products is free but
    fixed for a given program and device.""",
    samples=(
        sample(_f32([[1, -2, 3], [4, 5, -6]]), axes=(1,), kind="sum", gives=_f32([2, 3])),
        sample(_f32([[1, -2, 3], [4, 5, -6]]), axes=(0,), kind="prod", gives=_f32([4, -10, -18])),
        sample(_f32([[-1, -2, -3], [-4, -5, -6]]), axes=(1,), kind="max", gives=_f32([-1, -4])),
        sample(_f32([[1, 2, _INF], [4, _NAN, 6]]), axes=(1,), kind="min", gives=_f32([1, _NAN])),
        sample(_f32([[-0.0, 0.0], [0.0, -0.0]]), axes=(0,), kind="max", gives=_f32([0.0, 0.0])),
        sample(_f32([[-0.0, 0.0], [0.0, 2.0]]), axes=(1,), kind="min", gives=_f32([-0.0, 0.0])),
        sample(_f32([-0.0, -0.0]), axes=(0,), kind="max", gives=_f32(-0.0)),
        sample(
            _i32([[[1, 2, 3], [4, 5, 6]], [[-1, 0, 1], [7, 7, 7]]]),
            axes=(2, 0),
            kind="sum",
            gives=_i32([6, 36]),
        ),
        sample(_i32([2147483647, 1]), axes=(0,), kind="sum", gives=_i32(-2147483648)),
        sample(_u32([65536, 65537]), axes=(0,), kind="prod", gives=_u32(65536)),
        sample(_u32([3, 4294967295]), axes=(0,), kind="max", gives=_u32(4294967295)),
        sample(
            _bool([[False, True], [False, False]]),
            axes=(1,),
            kind="any",
            gives=_bool([True, False]),
        ),
        sample(
            _bool([[True, True], [False, True]]), axes=(0,), kind="all", gives=_bool([False, True])
        ),
        sample(_f32([[], []]), axes=(1,), kind="sum", gives=_f32([0, 0])),
        sample(_f32([[], []]), axes=(1,), kind="prod", gives=_f32([1, 1])),
        sample(_f32([[], []]), axes=(1,), kind="max", gives=_f32([-_INF, -_INF])),
        sample(_f32([]), axes=(0,), kind="min", gives=_f32(_INF)),
        sample(_i32([]), axes=(0,), kind="max", gives=_i32(-2147483648)),
        sample(_u32([]), axes=(0,), kind="min", gives=_u32(4294967295)),
        sample(_bool([]), axes=(0,), kind="any", gives=_bool(False)),
        sample(_bool([]), axes=(0,), kind="all", gives=_bool(True)),
        sample(_f32([[-1, 2]]), axes=(), kind="max", gives=_f32([[-1, 2]])),
    ),
    bad_calls=(
        bad(
            "attribute",
            "f32[2]",
            axes=(0,),
            kind="mean",
            message="unknown kind 'mean' (nearest: min, max, any); "
            "known: all, any, max, min, prod, sum",
        ),
        *refusals("operand", NUMERIC | BITS, "f32[3]", axes=(0,), kind="sum"),
        bad(
            "axis",
            "f32[2,3]",
            axes=(-1,),
            kind="sum",
            message="axes entry -1 is not an axis of rank 2 (0 <= axis < 2)",
        ),
        bad("axes", "f32[2,3]", axes=(1, 1), kind="sum", message="axes (1, 1) repeats an axis"),
        bad("axes", "f32[2,3]", axes=1, kind="sum", message="axes 1 is not a tuple of integers"),
        bad(
            "kind",
            "bool[2]",
            axes=(0,),
            kind="sum",
            message="kind sum does not take bool; bool takes any and all, "
            "numbers take sum, prod, max and min",
        ),
        bad(
            "kind",
            "f32[2]",
            axes=(0,),
            kind="any",
            message="kind any does not take f32; bool takes any and all, "
            "numbers take sum, prod, max and min",
        ),
    ),
)


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
    meaning=lambda xp, operand, *, axis: xp.arg_max(operand, axis=axis),
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
    meaning=lambda xp, operand, *, axis: xp.arg_min(operand, axis=axis),
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
    ),
    bad_calls=_ARG_BAD_CALLS,
)


def _cumulative(call: Call) -> TensorType:
    (operand,) = call.types
    call.axis(call["axis"], operand.rank)
    return operand


cumulative = define(
    "cumulative",
    "operand",
    dtypes=NUMERIC,
    attributes=(
        Attribute("axis", "the axis that is followed"),
        Attribute("kind", "the fold", choices=("sum", "max")),
    ),
    rule=_cumulative,
    meaning=lambda xp, operand, *, axis, kind: xp.cumulative(operand, axis=axis, kind=kind),
    traits="scan",
    accuracy="dot",
    doc="""Running sum or maximum: element i folds elements 0 to i of its line.

    Integers wrap. Max is exact, propagates NaN onwards and orders -0 < +0. The order of float sums
    is free but fixed for a given program and device.""",
    samples=(
        sample(
            _f32([[1, -2, 3], [4, 5, -6]]), axis=1, kind="sum", gives=_f32([[1, -1, 2], [4, 9, 3]])
        ),
        sample(
            _f32([[1, -2, 3], [4, 5, -6]]), axis=0, kind="sum", gives=_f32([[1, -2, 3], [5, 3, -3]])
        ),
        sample(
            _f32([[-3, -5, -1], [1, _NAN, 2]]),
            axis=1,
            kind="max",
            gives=_f32([[-3, -3, -1], [1, _NAN, _NAN]]),
        ),
        sample(_f32([-0.0, 0.0, -0.0]), axis=0, kind="max", gives=_f32([-0.0, 0.0, 0.0])),
        sample(
            _i32([2147483647, 1, 5]),
            axis=0,
            kind="sum",
            gives=_i32([2147483647, -2147483648, -2147483643]),
        ),
        sample(
            _u32([1, 4294967295, 3]), axis=0, kind="max", gives=_u32([1, 4294967295, 4294967295])
        ),
        sample(_f32([[], []]), axis=1, kind="sum", gives=_f32([[], []])),
    ),
    bad_calls=(
        bad(
            "attribute", "f32[2]", axis=0, kind="min", message="unknown kind 'min'; known: max, sum"
        ),
        *refusals("operand", NUMERIC, "f32[3]", axis=0, kind="sum"),
        bad("axis", "f32[]", axis=0, kind="sum", message=_NO_AXIS),
    ),
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
    meaning=lambda xp, operand, **attributes: xp.sort(operand, **attributes),
    traits="order",
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
    meaning=lambda xp, operand, *, k: xp.top_k(operand, k=k),
    decomposition=_top_k_decomposition,
    traits="order",
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
    ),
    bad_calls=(
        *refusals("operand", NUMERIC, "f32[3]", k=2),
        bad("rank", "f32[]", k=1, message="operand has no axis; top_k looks along the last one"),
        bad("k", "f32[5,3]", k=4, message="k 4 is not in 0 <= k <= 3"),
        bad("k", "f32[5,3]", k=-1, message="k -1 is not in 0 <= k <= 3"),
    ),
)
