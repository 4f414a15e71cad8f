"""The windows of a sliding window themselves, laid out for a contraction."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from ptir.ir.graph import Ref
from ptir.ops.classes import ANY
from ptir.ops.fill import scalar
from ptir.ops.layout import broadcast_to, reshape
from ptir.ops.movement import concat
from ptir.ops.record import Array, Call, bad, define, refusals, sample
from ptir.ops.sliding import window_dimensions
from ptir.ops.window import checked_dimensions, geometry, padded, refused_entries, taps
from ptir.types import TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_bool, _f16, _bf16 = partial(Array, "bool"), partial(Array, "f16"), partial(Array, "bf16")
_NAN = float("nan")


def _extract_patches(call: Call) -> TensorType:
    (operand,) = call.types
    message = f"operand has {operand.rank} axes; [N, ..., C] needs at least 2"
    call.require(operand.rank >= 2, "rank", message)
    batch, *sizes, channels = operand.shape
    found = checked_dimensions(call, sizes, "spatial axis")
    places, window = (s.count for s in found), (s.window for s in found)
    return operand.with_shape((batch, *places, *window, channels))


def _extract_patches_decomposition(operand: Ref, **entries: Any) -> Ref:
    batch, *sizes, channels = operand.type.shape
    found = window_dimensions(sizes, **entries)
    places, window = tuple(s.count for s in found), tuple(s.window for s in found)
    zero, shape = scalar(0, operand.type.dtype), (batch, *places, *window, channels)
    if not prod(shape):
        return broadcast_to(zero, shape=shape)
    one = (batch, *places, 1, channels)
    seen = taps(padded(operand, zero, found, 1), found, 1)
    together = concat(*(reshape(tap, shape=one) for tap in seen), axis=len(one) - 2)
    return reshape(together, shape=shape)


extract_patches = define(
    "extract_patches",
    "operand",
    dtypes=ANY,
    attributes=geometry("spatial axis"),
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
        *refused_entries(
            "f32[1,4,3]",
            (
                ("window", (-2,), "has an entry below 1"),
                ("strides", (0,), "has an entry below 1"),
                ("low", 1, "is not a tuple of integers"),
                ("high", (0, 1, 0), "has 3 entries; one per spatial axis is 1"),
                ("base_dilation", (0,), "has an entry below 1"),
                ("window_dilation", (0,), "has an entry below 1"),
            ),
            window=(2,),
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
