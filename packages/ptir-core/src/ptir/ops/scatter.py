"""Scatters: updates folded into an operand at places, and rows folded by segment."""

from __future__ import annotations

from functools import partial
from typing import Any

from ptir.ir.graph import Ref
from ptir.ops.classes import ANY, INDEX, NUMERIC
from ptir.ops.layout import broadcast_to, reshape
from ptir.ops.places import AXES, BATCH, address_bad_calls, addressed, index_bounds
from ptir.ops.record import Array, Attribute, Call, bad, define, literal, op, refusals, sample
from ptir.types import TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_bool, _f16 = partial(Array, "bool"), partial(Array, "f16")
_i8, _i64 = partial(Array, "i8"), partial(Array, "i64")
_NAN, _INF = float("nan"), float("inf")
_SCATTER = {"operand": ANY, "indices": INDEX, "updates": ANY}


def _require_fold(call: Call, kind: str) -> None:
    found = call.types[0].dtype
    holds = kind == "replace" or found in NUMERIC
    call.require(holds, "kind", f"kind {kind} does not take {found}")


def _scatter_reduce(call: Call) -> TensorType:
    operand, _, updates = call.types
    wanted = operand.with_shape(addressed(call))
    message = f"updates has type {updates}; {wanted} is addressed"
    call.require(updates == wanted, "updates", message)
    _require_fold(call, call["kind"])
    return operand


scatter_reduce = define(
    "scatter_reduce",
    "operand indices updates",
    dtypes=_SCATTER,
    attributes=(
        AXES,
        Attribute("kind", "the fold", choices=("add", "mul", "max", "min", "replace")),
        BATCH,
    ),
    rule=_scatter_reduce,
    reference=lambda xp, *operands, **attributes: xp.scatter_reduce(*operands, **attributes),
    bounds=index_bounds,
    traits="movement",
    doc="""The operand with ``updates`` folded in at the places that ``indices`` holds.

    Places are addressed as in ``gather``, whose result has the shape of ``updates``. A place with
    any index outside is dropped, negative ones included. Several updates of one place are folded
    in the order of ``updates`` (row-major), one after the other, after the operand's own element:
    so the last replace wins, and float results do not vary. Integers wrap; f16 and bf16
    accumulate in f32 and are rounded once, after the last update; max and min propagate NaN and
    order -0 < +0. What no update reaches keeps its bits.""",
    samples=(
        sample(
            _f32([[1, 2, 3], [4, 5, 6]]),
            _i32([[0, 2], [1, 0], [0, 2]]),
            _f32([10, 20, -30]),
            axes=(0, 1),
            kind="add",
            gives=_f32([[1, 2, -17], [24, 5, 6]]),
        ),
        sample(
            _i8([100, -100, 3]),
            _i64([[0], [1], [0], [2**40]]),
            _i8([100, -100, 1, 7]),
            axes=(0,),
            kind="add",
            gives=_i8([-55, 56, 3]),
        ),
        sample(
            _f32([[1, 2, 3], [4, 5, 6]]),
            _i32([[2, 0], [0, 1]]),
            _f32([-7, -8]),
            axes=(1, 0),
            kind="replace",
            gives=_f32([[1, 2, -7], [-8, 5, 6]]),
        ),
        sample(
            _i32([1, 2, 3]),
            _i32([[1], [0], [1], [-1], [3], [-2147483648]]),
            _i32([7, -8, 9, 10, 11, 12]),
            axes=(0,),
            kind="replace",
            gives=_i32([-8, 9, 3]),
        ),
        sample(
            _f32([[1, 2], [3, 4], [5, 6]]),
            _u32([[2], [0], [4294967295]]),
            _f32([[-9, 9], [9, -9], [50, 50]]),
            axes=(0,),
            kind="max",
            gives=_f32([[9, 2], [3, 4], [5, 9]]),
        ),
        sample(
            _f32([[1, 2], [3, 4]]),
            _i32([[[1], [1]], [[0], [5]]]),
            _f32([[-1, -2], [2, -9]]),
            axes=(1,),
            batch=1,
            kind="min",
            gives=_f32([[1, -2], [2, 4]]),
        ),
        sample(
            _f32([-0.0, 0.0, 0.0, -_INF, 1, 1]),
            _i32([[0], [1], [2], [3], [4], [5], [4]]),
            _f32([0.0, -0.0, _NAN, -5, _NAN, -1, 3]),
            axes=(0,),
            kind="max",
            gives=_f32([0.0, 0.0, _NAN, -5, _NAN, 1]),
        ),
        sample(
            _f32([-0.0, 0.0]),
            _i32([[0], [1]]),
            _f32([0.0, -0.0]),
            axes=(0,),
            kind="min",
            gives=_f32([-0.0, -0.0]),
        ),
        sample(
            _f32([0, 0]),
            _i32([[0], [0], [0], [1], [1], [1]]),
            _f32([1e30, -1e30, 1, 1, 1e30, -1e30]),
            axes=(0,),
            kind="add",
            gives=_f32([1, 0]),
        ),
        sample(
            _f32([-0.0, -0.0]),
            _i32([[0], [1]]),
            _f32([-0.0, 0.0]),
            axes=(0,),
            kind="add",
            gives=_f32([-0.0, 0.0]),
        ),
        sample(
            _f16([2048, -0.0]),
            _i32([[0], [0]]),
            _f16([1, 1]),
            axes=(0,),
            kind="add",
            gives=_f16([2050, -0.0]),
        ),
        sample(
            _i32([2147483647]),
            _i32([[0]]),
            _i32([1]),
            axes=(0,),
            kind="add",
            gives=_i32([-2147483648]),
        ),
        sample(
            _u32([65536, 3]),
            _i32([[0], [1]]),
            _u32([65537, 5]),
            axes=(0,),
            kind="mul",
            gives=_u32([65536, 15]),
        ),
        sample(
            _bool([False, True]),
            _i32([[1], [0]]),
            _bool([False, True]),
            axes=(0,),
            kind="replace",
            gives=_bool([True, False]),
        ),
    ),
    bad_calls=(
        *refusals(
            "operand indices updates",
            _SCATTER,
            "f32[2]",
            "i32[3,1]",
            "f32[3]",
            axes=(0,),
            kind="add",
        ),
        *address_bad_calls("f32[4]", kind="add"),
        bad(
            "attribute",
            "f32[2]",
            "i32[3,1]",
            "f32[3]",
            axes=(0,),
            kind="sum",
            message="unknown kind 'sum'; known: add, max, min, mul, replace",
        ),
        bad(
            "updates",
            "f32[2,3]",
            "i32[4,1]",
            "f32[4,2]",
            axes=(0,),
            kind="add",
            message="updates has type f32[4,2]; f32[4,3] is addressed",
        ),
        bad(
            "updates",
            "f32[2]",
            "i32[4,1]",
            "i32[4]",
            axes=(0,),
            kind="replace",
            message="updates has type i32[4]; f32[4] is addressed",
        ),
        bad(
            "kind",
            "bool[2]",
            "i32[4,1]",
            "bool[4]",
            axes=(0,),
            kind="max",
            message="kind max does not take bool",
        ),
    ),
)


def _segment_reduce(call: Call) -> TensorType:
    operand, ids = call.types
    call.require(operand.rank > 0, "rank", "operand has no axis; its first one is reduced")
    wanted = ids.with_shape(operand.shape[:1])
    message = f"segment_ids has type {ids}; {wanted} is needed, one per row"
    call.require(ids == wanted, "segment_ids", message)
    count = call["segments"]
    good = type(count) is int and count >= 0
    call.require(good, "segments", f"segments {count!r} is not an integer, 0 or more")
    return operand.with_shape((count, *operand.shape[1:]))


def _segment_decomposition(operand: Ref, segment_ids: Ref, *, segments: int, kind: str) -> Ref:
    """A scatter into identities."""
    from ptir.ops.numerics import SCATTERS

    element = operand.type.dtype.numpy
    first = op("constant")(value=literal(_identity(kind, element)))
    empty = broadcast_to(first, shape=(segments, *operand.type.shape[1:]))
    places = reshape(segment_ids, shape=(*segment_ids.type.shape, 1))
    return scatter_reduce(empty, places, operand, axes=(0,), kind=SCATTERS[kind])


def _identity(kind: str, element: Any) -> Any:
    import numpy as np

    from ptir.ops.numerics import identity

    return np.array(identity(kind, element), element)


segment_reduce = define(
    "segment_reduce",
    "operand segment_ids",
    dtypes={"operand": NUMERIC, "segment_ids": INDEX},
    attributes=(
        Attribute("segments", "how many segments there are: the first axis of the result"),
        Attribute("kind", "the fold", choices=("sum", "prod", "max", "min")),
    ),
    rule=_segment_reduce,
    reference=lambda xp, *operands, **attributes: xp.segment_reduce(*operands, **attributes),
    decomposition=_segment_decomposition,
    bounds=lambda types, attributes: (1, (attributes["segments"] - 1,)),
    traits="reduction",
    doc="""Rows of the operand folded into the segment that each one names; ids need no order.

    A row whose id is outside is dropped, a segment without rows is the identity: 0, 1, -inf or
    the lowest integer (max), +inf or the highest (min). Rows are folded one after the other, in
    order, with the rules of ``scatter_reduce``.""",
    samples=(
        sample(
            _f32([[1, -2], [3, 4], [5, 6], [7, -8]]),
            _i32([2, 0, 2, 0]),
            segments=4,
            kind="sum",
            gives=_f32([[10, -4], [0, 0], [6, 4], [0, 0]]),
        ),
        sample(
            _i8([100, -3, 100]),
            _i64([1, 0, 1]),
            segments=2,
            kind="sum",
            gives=_i8([-3, -56]),
        ),
        sample(
            _f32([2, -3, 5, 7, 11]),
            _i32([1, 0, 1, -1, 3]),
            segments=3,
            kind="prod",
            gives=_f32([-3, 10, 1]),
        ),
        sample(
            _f32([-2, -1, _NAN, -0.0, 0.0]),
            _u32([0, 0, 1, 3, 3]),
            segments=4,
            kind="max",
            gives=_f32([-1, _NAN, -_INF, 0.0]),
        ),
        sample(_i32([5, -7]), _i32([1, 1]), segments=2, kind="min", gives=_i32([2147483647, -7])),
        sample(
            _i32([2147483647, 1]),
            _i32([0, 0]),
            segments=1,
            kind="sum",
            gives=_i32([-2147483648]),
        ),
        sample(_f16([2048, 1, 1]), _i32([0, 0, 0]), segments=1, kind="sum", gives=_f16([2050])),
        sample(_f32([1, 2]), _i32([0, 1]), segments=0, kind="sum", gives=_f32([])),
    ),
    bad_calls=(
        *refusals(
            "operand segment_ids",
            {"operand": NUMERIC, "segment_ids": INDEX},
            "f32[3]",
            "i32[3]",
            segments=2,
            kind="sum",
        ),
        bad(
            "attribute",
            "f32[3]",
            "i32[3]",
            segments=2,
            kind="add",
            message="unknown kind 'add'; known: max, min, prod, sum",
        ),
        bad(
            "rank",
            "f32[]",
            "i32[3]",
            segments=2,
            kind="sum",
            message="operand has no axis; its first one is reduced",
        ),
        bad(
            "segment_ids",
            "f32[3,2]",
            "i32[3,2]",
            segments=2,
            kind="sum",
            message="segment_ids has type i32[3,2]; i32[3] is needed, one per row",
        ),
        bad(
            "segments",
            "f32[3]",
            "i32[3]",
            segments=-1,
            kind="sum",
            message="segments -1 is not an integer, 0 or more",
        ),
    ),
)
