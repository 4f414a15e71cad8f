"""What ``quantize`` and ``dequantize`` take and give, and the ops that they are made of."""

from __future__ import annotations

from typing import Final

from ptir.ir.graph import Ref
from ptir.ops.fill import full
from ptir.ops.layout import broadcast_to, reshape
from ptir.ops.packing import packed, unpacked, with_axis
from ptir.ops.record import Call, literal, op
from ptir.types import BF16, F16, F32, I32, U32, DType, TensorType
from ptir.weights.tables import Table, entries, problem
from ptir.weights.words import BITS, BITS_IN_WORDS, greatest, words_for

_RESULTS: Final = (F16, BF16, F32)


# --- types ---


def _layout(call: Call, rank: int) -> tuple[int, int, int]:
    """Axis, group and bits of a call."""
    axis, group, bits = call.axis(call["axis"], rank), call["group"], call["bits"]
    whole = type(group) is int and 1 <= group < 2**31
    call.require(whole, "group", f"group is {group!r}; it must be an integer in 1 <= group < 2**31")
    known = type(bits) is int and bits in BITS
    call.require(known, "bits", f"bits is {bits!r}; it must be {BITS_IN_WORDS}")
    return axis, group, bits


def _check_scales(call: Call, shape: tuple[int, ...], axis: int, group: int) -> None:
    """Scale and bias have one entry per group, and one or all along every other axis."""
    groups = shape[axis] // group
    for name, found in zip(("scale", "bias"), call.types[1:], strict=True):
        fits = found.rank == len(shape) and all(
            size == groups if at == axis else size in (1, wanted)
            for at, (size, wanted) in enumerate(zip(found.shape, shape, strict=True))
        )
        needed = [f"1 or {size}" if size != 1 else "1" for size in shape]
        needed[axis] = str(groups)
        message = f"{name} has shape {list(found.shape)}; [{', '.join(needed)}] is needed"
        call.require(fits, "scales", message)


def quantize_type(call: Call) -> TensorType:
    """The words of the values of a call of ``quantize``."""
    operand = call.types[0]
    axis, group, bits = _layout(call, operand.rank)
    size = operand.shape[axis]
    call.require(
        size % group == 0, "groups", f"group {group} does not divide axis {axis} of {size}"
    )
    _check_scales(call, operand.shape, axis, group)
    return TensorType(U32, with_axis(operand.shape, axis, words_for(size, bits)))


def _check_table(call: Call, bits: int) -> None:
    """A table has a number for every value."""
    table = call["table"]
    wanted = problem(table, bits)
    message = f"table is {table!r}; for values of {bits} bits it must be {wanted}"
    call.require(wanted is None, "table", message)


def dequantize_type(call: Call) -> TensorType:
    """The floats that a call of ``dequantize`` gives."""
    words, scale, _ = call.types
    axis, group, bits = _layout(call, words.rank)
    _check_table(call, bits)
    dtype = call["dtype"]
    known = isinstance(dtype, DType) and dtype in _RESULTS
    call.require(known, "target", f"dtype is {dtype!r}; one of f16, bf16, f32, as a DType")
    same = f"scale has {scale.rank} axes, words {words.rank}; they must have the same"
    call.require(scale.rank == words.rank, "rank", same)
    size = scale.shape[axis] * group
    needed = words_for(size, bits)
    message = (
        f"{scale.shape[axis]} groups of {group} values of {bits} bits take {needed} words;"
        f" axis {axis} has {words.shape[axis]}"
    )
    call.require(words.shape[axis] == needed, "words", message)
    shape = with_axis(words.shape, axis, size)
    _check_scales(call, shape, axis, group)
    return TensorType(dtype, shape)


# --- decompositions ---


def _wide(x: Ref) -> Ref:
    return x if x.type.dtype == F32 else op("cast")(x, dtype=F32)


def _per_value(scale: Ref, shape: tuple[int, ...], axis: int, group: int) -> Ref:
    """A scale or bias in f32 for every value."""
    groups = scale.type.shape[axis]
    each = reshape(_wide(scale), shape=with_axis(scale.type.shape, axis, groups, 1))
    spread = broadcast_to(each, shape=with_axis(shape, axis, groups, group))
    return reshape(spread, shape=shape)


def quantize_decomposition(
    operand: Ref, scale: Ref, bias: Ref, *, axis: int, group: int, bits: int
) -> Ref:
    """``quantize`` in ops of the core."""
    shape = operand.type.shape
    step, start = (_per_value(x, shape, axis, group) for x in (scale, bias))
    ratio = op("div")(op("sub")(_wide(operand), start), step)
    top = full(greatest(bits), shape, F32)
    values = op("cast")(op("minimum")(op("round")(ratio), top), dtype=U32)
    flat = op("compare")(step, full(0, shape, F32), direction="eq")
    return packed(op("select")(flat, full(0, shape, U32), values), axis, bits)


def dequantize_decomposition(
    words: Ref,
    scale: Ref,
    bias: Ref,
    *,
    axis: int,
    group: int,
    bits: int,
    dtype: DType,
    table: Table | None,
) -> Ref:
    """``dequantize`` in ops of the core."""
    values = unpacked(words, axis, bits, scale.type.shape[axis] * group)
    shape = values.type.shape
    step, start = (_per_value(x, shape, axis, group) for x in (scale, bias))
    numbers = op("cast")(values, dtype=F32) if table is None else _looked_up(values, table, bits)
    result = op("add")(op("mul")(numbers, step), start)
    return result if dtype == F32 else op("cast")(result, dtype=dtype)


def _looked_up(values: Ref, table: Table, bits: int) -> Ref:
    """The entries of a table that u32 values stand for, as f32."""
    numbers = op("constant")(value=literal(entries(table, bits)))
    found: Ref = op("take")(numbers, op("cast")(values, dtype=I32), axis=0)
    return found
