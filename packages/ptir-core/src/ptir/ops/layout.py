"""Layout ops: the same elements in another shape or order, which a strided view can show."""

from __future__ import annotations

from functools import partial

from ptir.ir.graph import Ref
from ptir.ops.classes import ANY
from ptir.ops.fill import full, positions
from ptir.ops.record import Array, Attribute, Call, bad, define, op, refusals, sample
from ptir.types import I32, TensorType

_f32, _i32, _u64 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u64")
_bool, _f16, _bf16 = partial(Array, "bool"), partial(Array, "f16"), partial(Array, "bf16")
_i8, _f64, _e5m2 = partial(Array, "i8"), partial(Array, "f64"), partial(Array, "f8e5m2")


def _reshape(call: Call) -> TensorType:
    (operand,) = call.types
    result = operand.with_shape(call.integers("shape", least=0))
    lost = f"{operand.size} elements do not fill shape {result.shape} of {result.size}"
    call.require(result.size == operand.size, "size", lost)
    return result


reshape = define(
    "reshape",
    "operand",
    dtypes=ANY,
    attributes=(Attribute("shape", "axis sizes of the result"),),
    rule=_reshape,
    reference=lambda xp, operand, *, shape: xp.reshape(operand, shape=shape),
    traits="movement view",
    doc="""The same elements, in row-major order, in another shape.""",
    samples=(
        sample(
            _f32([[1, -2, 3], [4, 5, -6]]), shape=(3, 2), gives=_f32([[1, -2], [3, 4], [5, -6]])
        ),
        sample(_bf16([[[1.5]]]), shape=(), gives=_bf16(1.5)),
        sample(_bool([[], []]), shape=(0, 3), gives=_bool([]).reshaped(0, 3)),
        sample(_u64([[2**64 - 1], [1]]), shape=(2,), gives=_u64([2**64 - 1, 1])),
        sample(_e5m2([[-1.5, 2]]), shape=(2, 1), gives=_e5m2([[-1.5], [2]])),
    ),
    bad_calls=(
        *refusals("operand", ANY, "f32[4]", shape=(2, 2)),
        bad("size", "f32[2,3]", shape=(2, 2), message="6 elements do not fill shape (2, 2) of 4"),
        bad("shape", "f32[6]", shape=(2, -1), message="shape (2, -1) has an entry below 0"),
        bad("shape", "f32[6]", shape=6, message="shape 6 is not a tuple of integers"),
    ),
)


def _transpose(call: Call) -> TensorType:
    (operand,) = call.types
    order = call.integers("permutation")
    message = f"permutation {order} is not an order of the {operand.rank} axes"
    call.require(sorted(order) == list(range(operand.rank)), "permutation", message)
    return operand.with_shape(tuple(operand.shape[axis] for axis in order))


transpose = define(
    "transpose",
    "operand",
    dtypes=ANY,
    attributes=(Attribute("permutation", "which operand axis each result axis is"),),
    rule=_transpose,
    reference=lambda xp, operand, *, permutation: xp.transpose(operand, permutation=permutation),
    traits="movement view",
    doc="""The axes in another order: result axis i is operand axis permutation[i].""",
    samples=(
        sample(
            _i32([[[1, 2, 3], [4, 5, 6]]]),
            permutation=(1, 2, 0),
            gives=_i32([[[1], [2], [3]], [[4], [5], [6]]]),
        ),
        sample(
            _f32([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]]),
            permutation=(2, 0, 1),
            gives=_f32([[[1, 3, 5], [7, 9, 11]], [[2, 4, 6], [8, 10, 12]]]),
        ),
        sample(_f16([[1, -2, 3]]), permutation=(1, 0), gives=_f16([[1], [-2], [3]])),
        sample(_f32(-0.0), permutation=(), gives=_f32(-0.0)),
        sample(_i8([[1, -128], [3, 4]]), permutation=(1, 0), gives=_i8([[1, 3], [-128, 4]])),
    ),
    bad_calls=(
        *refusals("operand", ANY, "f32[2,3]", permutation=(1, 0)),
        bad(
            "permutation",
            "f32[2,3]",
            permutation=(0, 0),
            message="permutation (0, 0) is not an order of the 2 axes",
        ),
        bad(
            "permutation",
            "f32[2,3]",
            permutation=(1, 0, 2),
            message="permutation (1, 0, 2) is not an order of the 2 axes",
        ),
    ),
)


def _broadcast_to(call: Call) -> TensorType:
    (operand,) = call.types
    shape = call.integers("shape", least=0)
    aligned = zip(reversed(operand.shape), reversed(shape), strict=False)
    fits = operand.rank <= len(shape) and all(n in (1, wanted) for n, wanted in aligned)
    rule = "sizes aligned at the last axis must be equal or 1"
    call.require(fits, "alignment", f"{operand.shape} does not broadcast to {shape}: {rule}")
    return operand.with_shape(shape)


broadcast_to = define(
    "broadcast_to",
    "operand",
    dtypes=ANY,
    attributes=(Attribute("shape", "axis sizes of the result"),),
    rule=_broadcast_to,
    reference=lambda xp, operand, *, shape: xp.broadcast_to(operand, shape=shape),
    traits="movement view",
    doc="""The operand repeated to fill a shape, aligned as NumPy does.

    Axes are aligned at the last one; an axis of size 1 stretches; new axes come on the left.""",
    samples=(
        sample(_f32([1, -2, 3]), shape=(2, 3), gives=_f32([[1, -2, 3], [1, -2, 3]])),
        sample(_i32([[1], [-2]]), shape=(2, 3), gives=_i32([[1, 1, 1], [-2, -2, -2]])),
        sample(_bf16(2), shape=(2, 1), gives=_bf16([[2], [2]])),
        sample(_f32([[1, 2]]), shape=(0, 2), gives=_f32([]).reshaped(0, 2)),
        sample(_i8([-128, 1]), shape=(2, 2), gives=_i8([[-128, 1], [-128, 1]])),
        sample(_f64([[-0.5], [2]]), shape=(2, 2), gives=_f64([[-0.5, -0.5], [2, 2]])),
    ),
    bad_calls=(
        *refusals("operand", ANY, "f32[2]", shape=(3, 2)),
        bad(
            "alignment",
            "f32[2]",
            shape=(2, 3),
            message="(2,) does not broadcast to (2, 3): "
            "sizes aligned at the last axis must be equal or 1",
        ),
        bad(
            "alignment",
            "f32[1,3]",
            shape=(3,),
            message="(1, 3) does not broadcast to (3,): "
            "sizes aligned at the last axis must be equal or 1",
        ),
        bad("shape", "f32[1]", shape=(-1,), message="shape (-1,) has an entry below 0"),
    ),
)


def _reverse(call: Call) -> TensorType:
    (operand,) = call.types
    call.axes("axes", operand.rank)
    return operand


def _reverse_decomposition(operand: Ref, *, axes: tuple[int, ...]) -> Ref:
    for axis in axes:
        size = operand.type.shape[axis]
        if size > 1:
            last = full(size - 1, (size,), I32)
            operand = op("take")(operand, op("sub")(last, positions((size,), 0)), axis=axis)
    return operand


reverse = define(
    "reverse",
    "operand",
    dtypes=ANY,
    attributes=(Attribute("axes", "axes that are read backwards"),),
    rule=_reverse,
    reference=lambda xp, operand, *, axes: xp.reverse(operand, axes=axes),
    decomposition=_reverse_decomposition,
    traits="movement view",
    doc="""Axes read backwards.""",
    samples=(
        sample(_f32([[1, -2, 3], [4, 5, -6]]), axes=(1,), gives=_f32([[3, -2, 1], [-6, 5, 4]])),
        sample(_i32([[1, -2, 3], [4, 5, -6]]), axes=(0,), gives=_i32([[4, 5, -6], [1, -2, 3]])),
        sample(_bf16([[1, 2], [3, 4]]), axes=(1, 0), gives=_bf16([[4, 3], [2, 1]])),
        sample(_bool(True), axes=(), gives=_bool(True)),
        sample(_u64([2**63, 1, 2]), axes=(0,), gives=_u64([2, 1, 2**63])),
        sample(_f32([[], []]), axes=(0, 1), gives=_f32([[], []])),
    ),
    bad_calls=(
        *refusals("operand", ANY, "f32[2]", axes=(0,)),
        bad(
            "axis",
            "f32[2]",
            axes=(1,),
            message="axes entry 1 is not an axis of rank 1 (0 <= axis < 1)",
        ),
        bad("axes", "f32[2,3]", axes=(1, 1), message="axes (1, 1) repeats an axis"),
    ),
)
