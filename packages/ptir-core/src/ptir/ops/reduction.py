"""Reduction ops: folds of axes, and running folds along one."""

from __future__ import annotations

from functools import partial

from ptir.ir.graph import Ref
from ptir.ops.classes import COMMON, NUMERIC
from ptir.ops.fill import lowest, scalar
from ptir.ops.record import Array, Attribute, Call, bad, define, op, refusals, sample
from ptir.types import BOOL, F32, TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_f16, _bf16, _f64 = partial(Array, "f16"), partial(Array, "bf16"), partial(Array, "f64")
_i8, _u8, _i64 = partial(Array, "i8"), partial(Array, "u8"), partial(Array, "i64")
_u64, _bool = partial(Array, "u64"), partial(Array, "bool")
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
    dtypes=COMMON,
    attributes=(
        Attribute("axes", "axes that are folded away"),
        Attribute("kind", "the fold", choices=("sum", "prod", "max", "min", "any", "all")),
    ),
    rule=_reduce,
    reference=lambda xp, operand, *, axes, kind: xp.reduce(operand, axes=axes, kind=kind),
    traits="reduction",
    accuracy="dot",
    exact_kinds=("max", "min"),
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
        sample(_i8([127, 1, 2]), axes=(0,), kind="sum", gives=_i8(-126)),
        sample(_u8([200, 100]), axes=(0,), kind="sum", gives=_u8(44)),
        sample(_i8([16, -17]), axes=(0,), kind="prod", gives=_i8(-16)),
        sample(_i64([2**53, 1]), axes=(0,), kind="sum", gives=_i64(2**53 + 1)),
        sample(_u64([2**63, 2**63, 5]), axes=(0,), kind="sum", gives=_u64(5)),
        sample(_u64([2**63 + 1, 2**63]), axes=(0,), kind="max", gives=_u64(2**63 + 1)),
        sample(_i64([]), axes=(0,), kind="min", gives=_i64(2**63 - 1)),
        sample(_f64([1e16, 1, 1]), axes=(0,), kind="max", gives=_f64(1e16)),
        sample(_f64([0.1, 0.25]), axes=(0,), kind="sum", gives=_f64(0.35)),
        sample(_bf16([256, 1, 1, 1, 1]), axes=(0,), kind="sum", gives=_bf16(260)),
        sample(_f16([2048, 1, 1, 1, 1]), axes=(0,), kind="sum", gives=_f16(2052)),
        sample(_f16([[-0.0, 0.0], [_NAN, 1]]), axes=(1,), kind="min", gives=_f16([-0.0, _NAN])),
        sample(_bf16([]), axes=(0,), kind="max", gives=_bf16(-_INF)),
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
        *refusals("operand", COMMON, "f32[3]", axes=(0,), kind="sum"),
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


def _cumulative(call: Call) -> TensorType:
    (operand,) = call.types
    call.axis(call["axis"], operand.rank)
    return operand


def _cumulative_decomposition(operand: Ref, *, axis: int, kind: str) -> Ref:
    """Doubling: after step k every element holds the fold of the 2**k that end with it."""
    element, size = operand.type.dtype, operand.type.shape[axis]
    narrow = kind == "sum" and element.is_float and element.bits < F32.bits
    total = op("cast")(operand, dtype=F32) if narrow else operand
    wide = total.type.dtype
    nothing = scalar(lowest(wide) if kind == "max" else -0.0, wide)
    shift = 1
    while shift < size:
        moved = [shift if a == axis else 0 for a in range(operand.type.rank)]
        earlier = op("pad")(total, nothing, low=moved, high=[-n for n in moved])
        total = op("maximum" if kind == "max" else "add")(earlier, total)
        shift *= 2
    return op("cast")(total, dtype=element) if narrow else total


cumulative = define(
    "cumulative",
    "operand",
    dtypes=NUMERIC,
    attributes=(
        Attribute("axis", "the axis that is followed"),
        Attribute("kind", "the fold", choices=("sum", "max")),
    ),
    rule=_cumulative,
    reference=lambda xp, operand, *, axis, kind: xp.cumulative(operand, axis=axis, kind=kind),
    decomposition=_cumulative_decomposition,
    traits="scan",
    accuracy="dot",
    exact_kinds=("max",),
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
        sample(_i8([127, 1, -128]), axis=0, kind="sum", gives=_i8([127, -128, 0])),
        sample(_u64([2**63, 2**63, 1]), axis=0, kind="sum", gives=_u64([2**63, 0, 1])),
        sample(
            _i64([2**53, 2**53 + 1, 0]),
            axis=0,
            kind="max",
            gives=_i64([2**53, 2**53 + 1, 2**53 + 1]),
        ),
        sample(
            _bf16([256, 1, 1, 1, 1]), axis=0, kind="sum", gives=_bf16([256, 256, 258, 260, 260])
        ),
        sample(_f16([_NAN, 1]), axis=0, kind="max", gives=_f16([_NAN, _NAN])),
        sample(_f64([0.5, -0.25, 1e300]), axis=0, kind="sum", gives=_f64([0.5, 0.25, 1e300])),
    ),
    bad_calls=(
        bad(
            "attribute", "f32[2]", axis=0, kind="min", message="unknown kind 'min'; known: max, sum"
        ),
        *refusals("operand", NUMERIC, "f32[3]", axis=0, kind="sum"),
        bad("axis", "f32[]", axis=0, kind="sum", message=_NO_AXIS),
    ),
)
