"""Window ops: folds of sliding windows, and the windows themselves laid out for a contraction."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, Final

from ptir.ir.attributes import Literal
from ptir.ir.graph import Ref
from ptir.ops.classes import ANY, BITS, NUMERIC
from ptir.ops.layout import broadcast_to, reshape
from ptir.ops.movement import concat, pad
from ptir.ops.movement import slice as slice_op
from ptir.ops.record import Array, Attribute, Call, bad, define, op, refusals, sample
from ptir.ops.sliding import Slide, slides
from ptir.types import BOOL, F32, DType, TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_bool, _f16, _bf16 = partial(Array, "bool"), partial(Array, "f16"), partial(Array, "bf16")
_NAN, _INF = float("nan"), float("inf")


MOST_TAPS: Final = 2**20
"""Taps of a window: decomposed, each of them is an instruction."""


def _attributes(each: str) -> tuple[Attribute, ...]:
    """The geometry of a window op, with one entry for ``each``."""
    return (
        Attribute("window", f"taps of the window, one entry per {each}"),
        Attribute("strides", "elements between the starts of windows; none: 1", None),
        Attribute("low", "elements added before each axis; negative: removed; none: 0", None),
        Attribute("high", "elements added after each axis; negative: removed; none: 0", None),
        Attribute("base_dilation", "distance of neighbours once spread; none: 1", None),
        Attribute("window_dilation", "elements between the taps of a window; none: 1", None),
    )


def _slides(call: Call, sizes: Sequence[int], per: str) -> tuple[Slide, ...]:
    """The geometry of a call over axes of these sizes."""
    n = len(sizes)
    window = call.integers("window", n, 1, per)
    strides = None if call["strides"] is None else call.integers("strides", n, 1, per)
    low = None if call["low"] is None else call.integers("low", n, per=per)
    high = None if call["high"] is None else call.integers("high", n, per=per)
    base = None
    if call["base_dilation"] is not None:
        base = call.integers("base_dilation", n, 1, per)
    taps = None
    if call["window_dilation"] is not None:
        taps = call.integers("window_dilation", n, 1, per)
    found = slides(sizes, window, strides, low, high, base, taps)
    padded = tuple(slide.padded for slide in found)
    message = f"low {low} and high {high} crop more than there is: the padded sizes are {padded}"
    call.require(all(size >= 0 for size in padded), "size", message)
    excess = call.types[0].with_shape(padded).excess
    call.require(not excess, "size", f"the padded operand {excess}: sizes {padded}")
    count = prod(window)
    message = f"window {window} has {count} taps; at most {MOST_TAPS} are taken"
    call.require(count <= MOST_TAPS, "window", message)
    return found


def _padded(operand: Ref, value: Ref, found: Sequence[Slide], lead: int) -> Ref:
    """The operand spread and padded with ``value``; ``found`` are its axes from ``lead`` on."""
    before, after = (0,) * lead, (0,) * (operand.type.rank - lead - len(found))
    low = (*before, *(slide.low for slide in found), *after)
    high = (*before, *(slide.high for slide in found), *after)
    gaps = (*before, *(slide.base_dilation - 1 for slide in found), *after)
    if not any((*low, *high, *gaps)):
        return operand
    return pad(operand, value, low=low, high=high, interior=gaps)


def _taps(padded: Ref, found: Sequence[Slide], lead: int) -> Iterator[Ref]:
    """What each tap of the window sees in every window, the last axis of the window fastest."""
    shape = padded.type.shape
    end = shape[lead + len(found) :]
    for numbers in itertools.product(*(range(slide.window) for slide in found)):
        seen = [slide.tap(number) for slide, number in zip(found, numbers, strict=True)]
        yield slice_op(
            padded,
            starts=(*(0 for _ in range(lead)), *(start for start, _ in seen), *(0 for _ in end)),
            limits=(*shape[:lead], *(limit for _, limit in seen), *end),
            strides=(*(1 for _ in range(lead)), *(s.stride for s in found), *(1 for _ in end)),
        )


def _scalar(value: Any, dtype: DType) -> Ref:
    import numpy as np

    return op("constant")(value=Literal.of(np.asarray(value, dtype.numpy)))


def _spread(value: Ref, shape: tuple[int, ...]) -> Ref:
    return broadcast_to(value, shape=shape)


# --- reduce_window ---

_COMBINE: Final = {
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
    return operand.with_shape(tuple(s.count for s in _slides(call, operand.shape, "axis")))


def _identity(kind: str, dtype: DType) -> Ref:
    """What a fold of nothing gives, as a scalar."""
    from ptir.ops.numerics.arrays import identity

    return _scalar(identity(kind, dtype.numpy), dtype)


def _reduce_window_decomposition(operand: Ref, *, kind: str, **geometry: Any) -> Ref:
    """Tap by tap, from the identity; narrow floats are added and multiplied in f32."""
    dtype = operand.type.dtype
    if dtype.is_float and dtype.bits < F32.bits and kind in ("sum", "prod"):
        wide = op("cast")(operand, dtype=F32)
        return op("cast")(_reduce_window_decomposition(wide, kind=kind, **geometry), dtype=dtype)
    found = slides(operand.type.shape, **geometry)
    outside = _identity(kind, dtype)
    result = _spread(outside, tuple(slide.count for slide in found))
    if result.type.size:
        for tap in _taps(_padded(operand, outside, found, 0), found, 0):
            result = op(_COMBINE[kind])(result, tap)
    return result


reduce_window = define(
    "reduce_window",
    "operand",
    dtypes=NUMERIC | BITS,
    attributes=(
        *_attributes("axis"),
        Attribute("kind", "the fold", choices=("sum", "prod", "max", "min", "any", "all")),
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
        bad(
            "window", "f32[2]", window=(0,), kind="sum", message="window (0,) has an entry below 1"
        ),
        bad(
            "window", "f32[2]", window=2, kind="sum", message="window 2 is not a tuple of integers"
        ),
        bad(
            "strides",
            "f32[2]",
            window=(1,),
            strides=(0,),
            kind="sum",
            message="strides (0,) has an entry below 1",
        ),
        bad(
            "low",
            "f32[2]",
            window=(1,),
            low=(0, 0),
            kind="sum",
            message="low (0, 0) has 2 entries; one per axis is 1",
        ),
        bad(
            "high",
            "f32[2]",
            window=(1,),
            high=(1.5,),
            kind="sum",
            message="high (1.5,) is not a tuple of integers",
        ),
        bad(
            "base_dilation",
            "f32[2]",
            window=(1,),
            base_dilation=(0,),
            kind="sum",
            message="base_dilation (0,) has an entry below 1",
        ),
        bad(
            "window_dilation",
            "f32[2]",
            window=(1,),
            window_dilation=(-1,),
            kind="sum",
            message="window_dilation (-1,) has an entry below 1",
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


# --- extract_patches ---


def _extract_patches(call: Call) -> TensorType:
    (operand,) = call.types
    message = f"operand has {operand.rank} axes; [N, ..., C] needs at least 2"
    call.require(operand.rank >= 2, "rank", message)
    batch, *sizes, channels = operand.shape
    found = _slides(call, sizes, "spatial axis")
    places, window = (s.count for s in found), (s.window for s in found)
    return operand.with_shape((batch, *places, *window, channels))


def _extract_patches_decomposition(operand: Ref, **geometry: Any) -> Ref:
    batch, *sizes, channels = operand.type.shape
    found = slides(sizes, **geometry)
    places, window = tuple(s.count for s in found), tuple(s.window for s in found)
    zero, shape = _scalar(0, operand.type.dtype), (batch, *places, *window, channels)
    if not prod(shape):
        return _spread(zero, shape)
    one = (batch, *places, 1, channels)
    taps = _taps(_padded(operand, zero, found, 1), found, 1)
    together = concat(*(reshape(tap, shape=one) for tap in taps), axis=len(one) - 2)
    return reshape(together, shape=shape)


extract_patches = define(
    "extract_patches",
    "operand",
    dtypes=ANY,
    attributes=_attributes("spatial axis"),
    rule=_extract_patches,
    reference=lambda xp, operand, **attributes: xp.extract_patches(operand, **attributes),
    decomposition=_extract_patches_decomposition,
    traits="movement window",
    doc="""The windows of [N, ..., C] over its spatial axes, those between the first and the last.

    The result is [N, *places, *window, C]: contracting its last axes with weights [*window, C, O]
    is a convolution (cross-correlation). The operand is spread by ``base_dilation``, then padded
    (or cropped, where negative) by ``low`` and ``high``; what was added is zero. Windows that do
    not fit whole are left out.""",
    samples=(
        sample(
            Array("u64", [[[2**63], [1], [2]]]),
            window=(2,),
            gives=Array("u64", [[[[2**63], [1]], [[1], [2]]]]),
        ),
        sample(
            Array("f8e5m2", [[[0.5], [-2]]]),
            window=(1,),
            gives=Array("f8e5m2", [[[[0.5]], [[-2]]]]),
        ),
        sample(
            _i32([[[[1], [2], [3]], [[4], [5], [6]]]]),
            window=(2, 2),
            gives=_i32([1, 2, 4, 5, 2, 3, 5, 6]).reshaped(1, 1, 2, 2, 2, 1),
        ),
        sample(
            _f32([[[1, -1], [2, -2], [3, -3]]]),
            window=(2,),
            strides=(2,),
            low=(1,),
            gives=_f32([[[[0, 0], [1, -1]], [[2, -2], [3, -3]]]]),
        ),
        sample(
            _f32([[[1], [2], [-3]]]),
            window=(2,),
            high=(1,),
            base_dilation=(2,),
            window_dilation=(3,),
            gives=_f32([[[[1], [0]], [[0], [-3]], [[2], [0]]]]),
        ),
        sample(
            _u32([[[1], [2], [3], [4]], [[5], [6], [7], [4294967295]]]),
            window=(2,),
            low=(-1,),
            gives=_u32([[[[2], [3]], [[3], [4]]], [[[6], [7]], [[7], [4294967295]]]]),
        ),
        sample(
            _f16([[[[1], [2]], [[3], [4]], [[5], [-6]]]]),
            window=(2, 1),
            strides=(1, 2),
            gives=_f16([1, 3, 3, 5]).reshaped(1, 2, 1, 2, 1, 1),
        ),
        sample(
            _bf16([[[1], [_NAN]]]), window=(1,), high=(1,), gives=_bf16([[[[1]], [[_NAN]], [[0]]]])
        ),
        sample(
            Array("f8e5m2", [[[1], [-2]]]),
            window=(2,),
            low=(1,),
            gives=Array("f8e5m2", [[[[0], [1]], [[1], [-2]]]]),
        ),
        sample(_bool([[[True]]]), window=(2,), low=(1,), gives=_bool([[[[False], [True]]]])),
        sample(_f32([[1, -2], [3, 4]]), window=(), gives=_f32([[1, -2], [3, 4]])),
        sample(_f32([[[1]]]), window=(2,), gives=_f32([]).reshaped(1, 0, 2, 1)),
        sample(_f32([]).reshaped(0, 3, 2), window=(2,), gives=_f32([]).reshaped(0, 2, 2, 2)),
    ),
    bad_calls=(
        *refusals("operand", ANY, "f32[1,3,1]", window=(2,)),
        bad(
            "rank",
            "f32[3]",
            window=(2,),
            message="operand has 1 axes; [N, ..., C] needs at least 2",
        ),
        bad(
            "window",
            "f32[1,4,4,3]",
            window=(2, 2, 2),
            message="window (2, 2, 2) has 3 entries; one per spatial axis is 2",
        ),
        bad("window", "f32[1,4,3]", window=(-2,), message="window (-2,) has an entry below 1"),
        bad(
            "strides",
            "f32[1,4,3]",
            window=(2,),
            strides=(0,),
            message="strides (0,) has an entry below 1",
        ),
        bad(
            "low",
            "f32[1,4,3]",
            window=(2,),
            low=1,
            message="low 1 is not a tuple of integers",
        ),
        bad(
            "high",
            "f32[1,4,3]",
            window=(2,),
            high=(0, 1, 0),
            message="high (0, 1, 0) has 3 entries; one per spatial axis is 1",
        ),
        bad(
            "base_dilation",
            "f32[1,4,3]",
            window=(2,),
            base_dilation=(0,),
            message="base_dilation (0,) has an entry below 1",
        ),
        bad(
            "window_dilation",
            "f32[1,4,3]",
            window=(2,),
            window_dilation=(0,),
            message="window_dilation (0,) has an entry below 1",
        ),
        bad(
            "size",
            "f32[1,4,3]",
            window=(2,),
            high=(-5,),
            message="low None and high (-5,) crop more than there is: the padded sizes are (-1,)",
        ),
    ),
)
