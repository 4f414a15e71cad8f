"""Contraction ops: products summed over shared axes."""

from __future__ import annotations

from functools import partial

from ptir.ops.classes import NUMERIC
from ptir.ops.record import Array, Attribute, Call, bad, define, refusals, sample
from ptir.types import DTYPES, F16, F32, F64, I32, U32, DType, TensorType

_f32, _i32, _u32 = partial(Array, "f32"), partial(Array, "i32"), partial(Array, "u32")
_f16, _bf16, _f64 = partial(Array, "f16"), partial(Array, "bf16"), partial(Array, "f64")
_i8, _u8, _i64 = partial(Array, "i8"), partial(Array, "u8"), partial(Array, "i64")


def _sizes(type: TensorType, axes: tuple[int, ...]) -> str:
    return ",".join(str(type.shape[axis]) for axis in axes) or "none"


Axes = tuple[int, ...]


def _batch_axes(call: Call) -> tuple[Axes, Axes]:
    """The batch axes of both operands, equal in number and sizes."""
    lhs, rhs = call.types
    left, right = call.axes("lhs_batch", lhs.rank), call.axes("rhs_batch", rhs.rank)
    found, wanted = _sizes(lhs, left), _sizes(rhs, right)
    call.require(found == wanted, "batch", f"batch dims differ: {found} vs {wanted}")
    return left, right


def _contracted_axes(call: Call) -> tuple[Axes, Axes]:
    """The contracted axes of both operands, equal in number and sizes."""
    lhs, rhs = call.types
    left, right = call.axes("lhs_contract", lhs.rank), call.axes("rhs_contract", rhs.rank)
    found, wanted = _sizes(lhs, left), _sizes(rhs, right)
    call.require(found == wanted, "contract", f"contracting dims differ: {found} vs {wanted}")
    return left, right


def _free(call: Call, side: str, type: TensorType, batch: Axes, contract: Axes) -> tuple[int, ...]:
    """Sizes of the axes that are neither batch nor contracted."""
    shared = f"{side}_batch {batch} and {side}_contract {contract} share an axis"
    call.require(not set(batch) & set(contract), "disjoint", shared)
    return tuple(n for axis, n in enumerate(type.shape) if axis not in batch + contract)


def _result_dtype(call: Call) -> DType:
    operand, wanted = call.types[0].dtype, call["dtype"]
    if wanted is None:
        return operand
    fits = (
        isinstance(wanted, DType)
        and wanted in NUMERIC
        and (wanted.kind == operand.kind and wanted.holds(operand))
    )
    rule = f"it must be of the same kind as {operand} and hold all of its values"
    call.require(fits, "result dtype", f"result dtype {wanted} is refused: {rule}")
    return operand if not isinstance(wanted, DType) else wanted


def _dot_general(call: Call) -> TensorType:
    lhs, rhs = call.types
    differ = f"dtypes differ: {lhs.dtype} vs {rhs.dtype}; cast one of them"
    call.require(lhs.dtype == rhs.dtype, "same dtype", differ)
    lhs_batch, rhs_batch = _batch_axes(call)
    lhs_contract, rhs_contract = _contracted_axes(call)
    lhs_free = _free(call, "lhs", lhs, lhs_batch, lhs_contract)
    rhs_free = _free(call, "rhs", rhs, rhs_batch, rhs_contract)
    batch = tuple(lhs.shape[axis] for axis in lhs_batch)
    return TensorType(_result_dtype(call), (*batch, *lhs_free, *rhs_free))


dot_general = define(
    "dot_general",
    "lhs rhs",
    dtypes=NUMERIC,
    attributes=(
        Attribute("lhs_contract", "axes of lhs that are summed over"),
        Attribute("rhs_contract", "axes of rhs that are summed over, in the order of lhs_contract"),
        Attribute("lhs_batch", "axes of lhs that lead the result", ()),
        Attribute("rhs_batch", "axes of rhs paired with lhs_batch", ()),
        Attribute("dtype", "element type of the result and the sums; none: the operands'", None),
    ),
    rule=_dot_general,
    reference=lambda xp, lhs, rhs, **attributes: xp.dot_general(lhs, rhs, **attributes),
    traits="contraction",
    accuracy="dot",
    doc="""Products of lhs and rhs summed over the contracted axes.

    Result axes: batch, then the free axes of lhs, then those of rhs, each in operand order. Both
    operands have one dtype, which ``dtype`` may widen for products, sums and result. Integers wrap;
    floats may use FMA and any order of summation, f16 and bf16 are summed in f32 and rounded once;
    a sum of nothing is 0.""",
    samples=(
        sample(
            _f32([[1, -2, 3], [4, 5, -6]]),
            _f32([[7, -8, 9], [1, 0, -1]]),
            lhs_contract=(1,),
            rhs_contract=(1,),
            gives=_f32([[50, -2], [-66, 10]]),
        ),
        sample(
            _f32([[1, -2, 3], [4, 5, -6]]),
            _f32([[1, 2], [0, -1], [3, 0]]),
            lhs_contract=(1,),
            rhs_contract=(0,),
            gives=_f32([[10, 4], [-14, 3]]),
        ),
        sample(
            _f32([[[1, -2], [3, 4]], [[0, 5], [-6, 7]], [[1, 1], [2, -3]]]),
            _f32([[[2, 1, 3]], [[-1, 4, 0]]]),
            lhs_batch=(0,),
            rhs_batch=(2,),
            lhs_contract=(2,),
            rhs_contract=(0,),
            gives=_f32([[[4], [2]], [[20], [22]], [[3], [6]]]),
        ),
        sample(
            _f32([[[1, -2], [3, 4]], [[0, 5], [-6, 7]]]),
            _f32([[[2, 1], [3, -1]], [[4, 0], [-5, 6]]]),
            lhs_batch=(0, 1),
            rhs_batch=(1, 0),
            lhs_contract=(2,),
            rhs_contract=(2,),
            gives=_f32([[0, 12], [-5, 72]]),
        ),
        sample(
            _i32([[[1, 2], [3, 4], [5, 6]]]),
            _i32([[1, -1, 2], [0, 10, 1]]),
            lhs_contract=(2, 1),
            rhs_contract=(0, 1),
            gives=_i32([54]),
        ),
        sample(
            _i32([2147483647, 2]), _i32([2, 3]), lhs_contract=(0,), rhs_contract=(0,), gives=_i32(4)
        ),
        sample(
            _u32([4294967295, 2]),
            _u32([3]),
            lhs_contract=(),
            rhs_contract=(),
            gives=_u32([[4294967293], [6]]),
        ),
        sample(
            _f32([[], []]),
            _f32([[], [], []]),
            lhs_contract=(1,),
            rhs_contract=(1,),
            gives=_f32([[0, 0, 0], [0, 0, 0]]),
        ),
        *(
            sample(lhs, rhs, lhs_contract=(0,), rhs_contract=(0,), **wider, gives=gives)
            for lhs, rhs, wider, gives in (
                (_i8([100, 100]), _i8([2, -1]), {}, _i8(100)),
                (_i8([100, 100]), _i8([2, 2]), {"dtype": I32}, _i32(400)),
                (_u8([255, 255]), _u8([255, 255]), {"dtype": U32}, _u32(130050)),
                (_i64([2**53, 3]), _i64([1, 3]), {}, _i64(2**53 + 9)),
                (_f16([2048, 1, 1]), _f16([1, 1, 1]), {}, _f16(2050)),
                (_f16([300, 2048]), _f16([300, 1]), {"dtype": F32}, _f32(92048)),
                (_bf16([256, 1, 1, 1]), _bf16([1, 1, 1, 1]), {}, _bf16(260)),
                (_bf16([256, 1]), _bf16([1, 1]), {"dtype": F32}, _f32(257)),
                (_f64([2.0**53, -1]), _f64([1, 1]), {}, _f64(2.0**53 - 1)),
                (_f32([2.0**24, 1]), _f32([1, 1]), {"dtype": F64}, _f64(2.0**24 + 1)),
            )
        ),
    ),
    bad_calls=(
        *refusals("lhs rhs", NUMERIC, "f32[3]", "f32[3]", lhs_contract=(0,), rhs_contract=(0,)),
        bad(
            "contract",
            "f32[2,3]",
            "f32[2,4]",
            lhs_contract=(1,),
            rhs_contract=(1,),
            message="contracting dims differ: 3 vs 4",
        ),
        bad(
            "contract",
            "f32[2,3]",
            "f32[3,2]",
            lhs_contract=(0, 1),
            rhs_contract=(1,),
            message="contracting dims differ: 2,3 vs 2",
        ),
        bad(
            "batch",
            "f32[2,3]",
            "f32[4,3]",
            lhs_batch=(0,),
            rhs_batch=(0,),
            lhs_contract=(1,),
            rhs_contract=(1,),
            message="batch dims differ: 2 vs 4",
        ),
        bad(
            "batch",
            "f32[2,3]",
            "f32[3]",
            lhs_batch=(0,),
            lhs_contract=(1,),
            rhs_contract=(0,),
            message="batch dims differ: 2 vs none",
        ),
        bad(
            "disjoint",
            "f32[3,2]",
            "f32[3,3]",
            lhs_batch=(0,),
            rhs_batch=(0,),
            lhs_contract=(0,),
            rhs_contract=(1,),
            message="lhs_batch (0,) and lhs_contract (0,) share an axis",
        ),
        bad(
            "disjoint",
            "f32[3,3]",
            "f32[3,2]",
            lhs_batch=(0,),
            rhs_batch=(0,),
            lhs_contract=(1,),
            rhs_contract=(0,),
            message="rhs_batch (0,) and rhs_contract (0,) share an axis",
        ),
        bad(
            "axis",
            "f32[2,3]",
            "f32[3]",
            lhs_contract=(2,),
            rhs_contract=(0,),
            message="lhs_contract entry 2 is not an axis of rank 2 (0 <= axis < 2)",
        ),
        bad(
            "rhs_contract",
            "f32[2,2]",
            "f32[2,2]",
            lhs_contract=(0, 1),
            rhs_contract=(1, 1),
            message="rhs_contract (1, 1) repeats an axis",
        ),
        bad(
            "lhs_contract",
            "f32[2,2]",
            "f32[2,2]",
            lhs_contract=(0, 0),
            rhs_contract=(1, 0),
            message="lhs_contract (0, 0) repeats an axis",
        ),
        bad(
            "lhs_batch",
            "f32[2]",
            "f32[2]",
            lhs_batch=(0, 0),
            lhs_contract=(),
            rhs_contract=(),
            message="lhs_batch (0, 0) repeats an axis",
        ),
        bad(
            "rhs_batch",
            "f32[2]",
            "f32[2]",
            rhs_batch=0,
            lhs_contract=(),
            rhs_contract=(),
            message="rhs_batch 0 is not a tuple of integers",
        ),
        bad(
            "same dtype",
            "i32[3]",
            "u32[3]",
            lhs_contract=(0,),
            rhs_contract=(0,),
            message="dtypes differ: i32 vs u32; cast one of them",
        ),
        *(
            bad(
                "result dtype",
                f"{operand}[3]",
                f"{operand}[3]",
                lhs_contract=(0,),
                rhs_contract=(0,),
                dtype=wanted,
                message=f"result dtype {wanted} is refused: it must be of the same kind as "
                f"{operand} and hold all of its values",
            )
            for operand, wanted in (
                ("f32", "f32"),
                ("f32", I32),
                ("f32", F16),
                ("bf16", F16),
                ("i8", U32),
                ("i64", I32),
                ("f16", DTYPES["f8e5m2"]),
            )
        ),
    ),
)
