"""The fold of each window of a sliding window."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ptir.ir.graph import Ref
from ptir.ops.classes import BITS, NUMERIC
from ptir.ops.fill import scalar
from ptir.ops.layout import broadcast_to
from ptir.ops.record import Array, Attribute, Call, bad, define, op, refusals, sample
from ptir.ops.sliding import window_dimensions
from ptir.ops.window import checked_dimensions, geometry, padded, refused_entries, taps
from ptir.types import BOOL, F32, DType, TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_bool, _f16, _bf16 = partial(Array, "bool"), partial(Array, "f16"), partial(Array, "bf16")
_NAN, _INF = float("nan"), float("inf")

_COMBINE: Final = {  # of each kind the op that adds one more element
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "or",
    "all": "and",
}


def _reduce_window(call: Call) -> TensorType:
    (operand,) = call.types
    fits = (call["kind"] in ("any", "all")) == (operand.dtype == BOOL)
    takes = "bool takes any and all, numbers take sum, prod, max and min"
    call.require(fits, "kind", f"kind {call['kind']} does not take {operand.dtype}; {takes}")
    return operand.with_shape(
        tuple(s.count for s in checked_dimensions(call, operand.shape, "axis"))
    )


def _identity(kind: str, dtype: DType) -> Ref:
    """What a fold of nothing gives, as a scalar."""
    from ptir.ops.numerics.arrays import identity

    return scalar(identity(kind, dtype.numpy), dtype)


def _reduce_window_decomposition(operand: Ref, *, kind: str, **entries: Any) -> Ref:
    """Tap by tap, from the identity; narrow floats are added and multiplied in f32."""
    dtype = operand.type.dtype
    if dtype.is_float and dtype.bits < F32.bits and kind in ("sum", "prod"):
        wide = op("cast")(operand, dtype=F32)
        return op("cast")(_reduce_window_decomposition(wide, kind=kind, **entries), dtype=dtype)
    found = window_dimensions(operand.type.shape, **entries)
    outside = _identity(kind, dtype)
    result = broadcast_to(outside, shape=tuple(dimension.count for dimension in found))
    if result.type.size:
        for tap in taps(padded(operand, outside, found, 0), found, 0):
            result = op(_COMBINE[kind])(result, tap)
    return result


reduce_window = define(
    "reduce_window",
    "operand",
    dtypes=NUMERIC | BITS,
    attributes=(
        *geometry("axis"),
        Attribute("kind", "the fold", choices=tuple(_COMBINE)),
    ),
    rule=_reduce_window,
    reference=lambda xp, operand, **attributes: xp.reduce_window(operand, **attributes),
    decomposition=_reduce_window_decomposition,
    traits="reduction window",
    accuracy="dot",
    exact_kinds=("max", "min"),
    doc="""Fold each window of a sliding window; the result has one element per window.

    The operand is spread by ``base_dilation``, then padded (or cropped, where negative) by ``low``
    and ``high``. What was added is the kind's identity, and every fold starts from it: 0, 1, -inf
    or the lowest integer (max), +inf or the highest (min), false (any), true (all). Windows that do
    not fit whole are left out. Folds are those of ``reduce``: integers wrap, max and min propagate
    NaN and order -0 < +0, the order of float sums and products is free.""",
    samples=(
        sample(_f32([1, -2, 3, 4, -6]), window=(3,), strides=(2,), kind="sum", gives=_f32([2, 1])),
        sample(
            _f32([[-1, -2, -3, -4], [-5, -6, -7, -0.5]]),
            window=(2, 2),
            strides=(1, 2),
            kind="max",
            gives=_f32([[-1, -0.5]]),
        ),
        sample(
            _f32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
            window=(1, 2),
            strides=(2, 1),
            kind="sum",
            gives=_f32([[3, 5], [15, 17]]),
        ),
        sample(Array("i8", [127, 1, -3]), window=(2,), kind="sum", gives=Array("i8", [-128, -2])),
        sample(Array("bf16", [256, 1, 1, 1]), window=(4,), kind="sum", gives=Array("bf16", [260])),
        sample(
            _i32([3, -1, 2]),
            window=(2,),
            low=(1,),
            high=(2,),
            kind="min",
            gives=_i32([3, -1, -1, 2, 2147483647]),
        ),
        sample(
            _i32([2, 3, -5]), window=(3,), base_dilation=(2,), kind="prod", gives=_i32([6, 3, -15])
        ),
        sample(
            _u32([1, 2, 4, 8, 16]),
            window=(2,),
            window_dilation=(3,),
            kind="sum",
            gives=_u32([9, 18]),
        ),
        sample(
            _f32([[1, 2, 3, 4, 5, 6, 7]]),
            window=(1, 2),
            strides=(1, 3),
            low=(0, -1),
            high=(1, 2),
            base_dilation=(1, 2),
            window_dilation=(1, 2),
            kind="prod",
            gives=_f32([[1, 12, 1, 42], [1, 1, 1, 1]]),
        ),
        sample(_i32([2147483647, 1, 5]), window=(2,), kind="sum", gives=_i32([-2147483648, 6])),
        sample(_u32([65536, 65537, 1]), window=(2,), kind="prod", gives=_u32([65536, 65537])),
        sample(
            _u32([3, 4294967295, 5]),
            window=(2,),
            strides=(2,),
            kind="max",
            gives=_u32([4294967295]),
        ),
        sample(_f32([1, _NAN, -2, -3]), window=(2,), kind="max", gives=_f32([_NAN, _NAN, -2])),
        sample(_f32([_NAN, 1, 2, _INF]), window=(2,), kind="min", gives=_f32([_NAN, 1, 2])),
        sample(
            _f32([-0.0, 0.0, -0.0, -0.0]), window=(2,), kind="max", gives=_f32([0.0, 0.0, -0.0])
        ),
        sample(_f32([0.0, -0.0, 0.0, 0.0]), window=(2,), kind="min", gives=_f32([-0.0, -0.0, 0.0])),
        sample(_f32([-0.0]), window=(1,), kind="sum", gives=_f32([0.0])),
        sample(_f16([2048, 1, 1, -1]), window=(3,), kind="sum", gives=_f16([2050, 1])),
        sample(_bf16([256, 1, 1]), window=(3,), kind="sum", gives=_bf16([258])),
        sample(_bf16([-2, -3]), window=(1,), high=(1,), kind="max", gives=_bf16([-2, -3, -_INF])),
        sample(
            Array("i8", [127, 2, -100]), window=(2,), kind="sum", gives=Array("i8", [-127, -98])
        ),
        sample(
            Array("u8", [200, 2]),
            window=(1,),
            low=(1,),
            kind="min",
            gives=Array("u8", [255, 200, 2]),
        ),
        sample(
            Array("i64", [-5]),
            window=(1,),
            low=(1,),
            kind="max",
            gives=Array("i64", [-(2**63), -5]),
        ),
        sample(Array("f64", [0.1, 0.2]), window=(2,), kind="sum", gives=Array("f64", [0.1 + 0.2])),
        sample(_f32([5]), window=(2,), low=(3,), kind="max", gives=_f32([-_INF, -_INF, 5])),
        sample(_i32([-7]), window=(1,), high=(1,), kind="max", gives=_i32([-7, -2147483648])),
        sample(
            _bool([False, True, False, False]),
            window=(2,),
            low=(1,),
            kind="any",
            gives=_bool([False, True, True, False]),
        ),
        sample(
            _bool([True, False, True, True]),
            window=(2,),
            high=(1,),
            kind="all",
            gives=_bool([False, False, True, True]),
        ),
        sample(
            _bool([True, False, False, True]),
            window=(2,),
            strides=(2,),
            base_dilation=(2,),
            window_dilation=(2,),
            kind="any",
            gives=_bool([True, False, True]),
        ),
        sample(
            _f32([1, 2, 4, 8, 16]), window=(2,), low=(-1,), high=(-2,), kind="sum", gives=_f32([6])
        ),
        sample(_f32([1, 2]), window=(3,), kind="sum", gives=_f32([])),
        sample(_f32([]), window=(2,), low=(2,), high=(1,), kind="sum", gives=_f32([0, 0])),
        sample(_f32([[], []]), window=(1, 1), kind="max", gives=_f32([[], []])),
        sample(_f32(-3), window=(), kind="min", gives=_f32(-3)),
    ),
    bad_calls=(
        bad(
            "attribute",
            "f32[2]",
            window=(1,),
            kind="mean",
            message="unknown kind 'mean' (nearest: min, max, any); "
            "known: all, any, max, min, prod, sum",
        ),
        *refusals("operand", NUMERIC | BITS, "f32[3]", window=(2,), kind="sum"),
        bad(
            "kind",
            "bool[2]",
            window=(2,),
            kind="sum",
            message="kind sum does not take bool; bool takes any and all, "
            "numbers take sum, prod, max and min",
        ),
        bad(
            "kind",
            "i32[2]",
            window=(2,),
            kind="all",
            message="kind all does not take i32; bool takes any and all, "
            "numbers take sum, prod, max and min",
        ),
        bad(
            "window",
            "f32[2,3]",
            window=(2,),
            kind="sum",
            message="window (2,) has 1 entries; one per axis is 2",
        ),
        *refused_entries(
            "f32[2]",
            (
                ("window", (0,), "has an entry below 1"),
                ("window", 2, "is not a tuple of integers"),
                ("strides", (0,), "has an entry below 1"),
                ("low", (0, 0), "has 2 entries; one per axis is 1"),
                ("high", (1.5,), "is not a tuple of integers"),
                ("base_dilation", (0,), "has an entry below 1"),
                ("window_dilation", (-1,), "has an entry below 1"),
            ),
            window=(1,),
            kind="sum",
        ),
        bad(
            "size",
            "f32[2]",
            window=(1,),
            low=(-2,),
            high=(-1,),
            kind="sum",
            message="low (-2,) and high (-1,) crop more than there is: the padded sizes are (-1,)",
        ),
    ),
)
