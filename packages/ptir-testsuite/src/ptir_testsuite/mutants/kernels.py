"""Planted faults in generated kernels: tails, bounds, roundings, folds, orders, packed weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ptir.codegen.expressions.elementwise import rounded
from ptir.codegen.expressions.expr import Apply, Expr, Load, Var, compare, constant, select
from ptir.codegen.expressions.index import ZERO
from ptir.codegen.kernel_ir.values import Gather, Lane
from ptir.types import BOOL, F32, DType
from ptir_testsuite.mutants.planting import planted

# --- ends of loops ---


@planted(
    "elements after the last whole vector are not stored",
    "add",
    "families.map.serial:MapEmitter.write",
)
def _(right: Any) -> Any:
    def write(self: Any, writer: Any, begin: Any, size: int, part: Any) -> None:
        right(self, writer, begin, size // self.lanes * self.lanes or size, part)

    return write


@planted(
    "the end of a row is left out of its fold",
    "reduce",
    "families.reduction.rows:RowEmitter._each_then_fold",
)
def _(right: Any) -> Any:
    def each(self: Any, body: Callable[[Any], None], fold: Any) -> None:
        def some(place: Any) -> None:
            if self.writer.lane or self.rows.size < self.lanes:
                body(place)

        right(self, some, fold)

    return each


@planted(
    "the last work-item of a kernel is not launched",
    "add dot_general sort programs",
    "launching.steps:Launch.__init__",
)
def _(right: Any) -> Any:
    def launch(self: Any, device: Any, kernel: Any, workgroups: int, *rest: Any) -> None:
        right(self, device, kernel, max(1, workgroups - 1), *rest)

    return launch


@planted(
    "the columns of a product are one too few",
    "dot_general",
    "families.matmul.serial:_Matmul._single_columns",
)
def _(right: Any) -> Any:
    def columns(self: Any, row: Any) -> None:
        self.columns -= self.columns > 1
        right(self, row)
        self.columns += 1

    return columns


# --- bounds ---


@planted(
    "padding reads the nearest element instead of the filler",
    "pad reduce_window",
    "expressions.movement:both",
)
def _(right: Any) -> Any:
    return lambda a, b: constant(BOOL, -1)


@planted(
    "indices are clamped to the size instead of the last place",
    "take dynamic_slice gather",
    "expressions.movement:_clamped_read",
)
def _(right: Any) -> Any:
    return lambda index, size: right(index, size + 1)


@planted(
    "indices known at run time are taken for 0",
    "dynamic_slice take",
    "expressions.movement:_clamped_read",
)
def _(right: Any) -> Any:
    return lambda index, size: ZERO


@planted(
    "gaps between elements of a window are not skipped",
    "reduce_window",
    "families.reduction.elements:tapped",
)
def _(right: Any) -> Any:
    return lambda places, taps, dimensions: right(
        places, taps, [replace(dimension, base_dilation=1) for dimension in dimensions]
    )


@planted(
    "attention sees one key beyond the row",
    "composite-attention",
    "families.attention.serial:Attention._seen",
)
def _(right: Any) -> Any:
    def seen(self: Any, row: Any, step: Any) -> Any:
        first, last = right(self, row, step)
        return first, Apply(last.dtype, "add", last, constant(last.dtype, 1))

    return seen


@planted(
    "a cache is written one place beyond its end",
    "composite-cache_update",
    "families.cache.serial:written",
)
def _(right: Any) -> Any:
    return lambda writer, builder, bounds, row, step, capacity: right(
        writer, builder, bounds, row, step, capacity + 1
    )


@planted(
    "integer division leaves zero to the machine",
    "div rem",
    "expressions.elementwise:_safe_divisor",
)
def _(right: Any) -> Any:
    return lambda dtype, a, b: b


# --- places ---


@planted(
    "a transpose takes its permutation for the inverse",
    "transpose",
    "expressions.movement:MOVEMENT[transpose]",
)
def _(right: Any) -> Any:
    return lambda op, at: op.at(0, tuple(at[p] for p in op["permutation"]))


@planted(
    "nibbles are unpacked from the highest down",
    "dequantize",
    "expressions.movement:MOVEMENT[dequantize]",
)
def _(right: Any) -> Any:
    def dequantize(op: Any, at: Any) -> Expr:
        axis, per = op["axis"], 32 // op["bits"]
        if 32 % op["bits"]:
            return right(op, at)  # type: ignore[no-any-return]
        place = at[axis]
        turned = place // per * per + (place % per) * -1 + (per - 1)
        found: Expr = right(op, (*at[:axis], turned, *at[axis + 1 :]))
        return found

    return dequantize


@planted(
    "every word of a table of vectors is that of the first code",
    "unpack_vectors",
    "expressions.movement:MOVEMENT[unpack_vectors]",
)
def _(right: Any) -> Any:
    def unpack(op: Any, at: Any) -> Expr:
        axis = op["axis"]
        found: Expr = right(op, (*at[:axis], at[axis] * 0, *at[axis + 1 :]))
        return found

    return unpack


@planted(
    "panels of packed weights are a word too short",
    "composite-linear",
    "weights.panels:Panels.word",
)
def _(right: Any) -> Any:
    def word(self: Any, output: Any, input: Any) -> Any:
        return right(replace(self, stride=(self.stride or self.inputs) - self.per), output, input)

    return word


@planted(
    "halves of a word of packed bf16 change places",
    "composite-linear",
    "weights.panels:UNPACKED[bf16]",
)
def _(right: Any) -> Any:
    return lambda word, place: right(word, 1 - place)


# --- arithmetic ---


def _computed(expr: Expr, op: str) -> tuple[Expr, ...]:
    """What an operand was computed from in the same kernel by ``op``; nothing if it was not."""
    return expr.args if isinstance(expr, Apply) and expr.op == op else ()


@planted(
    "16-bit values are not rounded between two ops",
    "programs",
    "expressions.elementwise:ELEMENTWISE[add]",
    "expressions.elementwise:ELEMENTWISE[mul]",
    "expressions.elementwise:ELEMENTWISE[sub]",
)
def _(right: Any) -> Any:
    def rule(dtype: DType, a: Expr, b: Expr) -> Expr:
        wide = [(*_computed(x, "narrow"), x)[0] for x in (a, b)]
        found: Expr = right(dtype, *wide)
        return found

    return rule


@planted(
    "a product and a sum are contracted", "programs", "expressions.elementwise:ELEMENTWISE[add]"
)
def _(right: Any) -> Any:
    def add(dtype: DType, a: Expr, b: Expr) -> Expr:
        factors = _computed(a, "mul") if dtype == F32 else ()
        if factors:
            return Apply(dtype, "fma", *factors, b)
        found: Expr = right(dtype, a, b)
        return found

    return add


@planted(
    "a difference of something computed is turned around",
    "programs",
    "expressions.elementwise:ELEMENTWISE[sub]",
)
def _(right: Any) -> Any:
    def sub(dtype: DType, a: Expr, b: Expr) -> Expr:
        turned = not isinstance(a, Load) and isinstance(b, Load)
        found: Expr = right(dtype, b, a) if turned else right(dtype, a, b)
        return found

    return sub


@planted(
    "a cast to integers and back only truncates",
    "programs",
    "expressions.elementwise:ELEMENTWISE[cast]",
)
def _(right: Any) -> Any:
    def cast(dtype: DType, x: Expr, /, **attributes: Any) -> Expr:
        number, whole, _ = _computed(x, "select") or (x, x, x)
        (source,) = _computed(whole, "convert") or (x,)
        if not dtype == source.dtype == F32:
            found: Expr = right(dtype, x, **attributes)
            return found
        below = compare("lt", source, constant(F32, 0))
        ends = (Apply(F32, op, source) for op in ("ceil", "floor"))
        return select(number, select(below, *ends), constant(F32, 0))

    return cast


@planted(
    "a maximum takes the number beside a NaN",
    "maximum",
    "expressions.elementwise:ELEMENTWISE[maximum]",
)
def _(right: Any) -> Any:
    return lambda dtype, a, b: select(compare("gt", a, b), a, b)


@planted(
    "shifts by the width do what the machine does",
    "shift_left",
    "expressions.elementwise:ELEMENTWISE[shift_left]",
)
def _(right: Any) -> Any:
    def shift(dtype: DType, x: Expr, amount: Expr) -> Expr:
        inside = Apply(dtype, "and", amount, constant(dtype, dtype.bits - 1))
        return Apply(dtype, "shift_left", x, inside)

    return shift


# --- folds and orders ---


@planted(
    "folds begin at 0, whatever they fold",
    "reduce cumulative reduce_window",
    "families.reduction.rows:identity",
    "families.reduction.elements:identity",
    "families.scan.serial:identity",
    "schedules.accumulators:identity",
)
def _(right: Any) -> Any:
    return lambda kind, dtype: constant(dtype, 0)


@planted("a 16-bit sum is rounded at every step", "reduce", "schedules.accumulators:COMBINERS[sum]")
def _(right: Any) -> Any:
    return lambda dtype, a, b: rounded(dtype, Apply(dtype, "add", a, b))


@planted(
    "running folds reach back eight places of sixteen",
    "cumulative",
    "families.scan.serial:_Running._prefix",
)
def _(right: Any) -> Any:
    def prefix(self: Any, found: Expr) -> Expr:
        writer, step = self.writer, 1
        held: Var = writer.let(found)
        while step < self.lanes // 2:
            lanes = (Lane(held, n) for n in range(self.lanes - step))
            earlier = writer.let(Gather(*(self.start(),) * step, *lanes))
            held, step = writer.let(writer.wide(self._combined(earlier, held))), step * 2
        return held

    return prefix


@planted("equal elements of a sort change places", "sort", "families.sort.match:compare")
def _(right: Any) -> Any:
    return lambda op, a, b: right("gt" if op == "ge" else op, a, b)


@planted(
    "the first update of a place stays", "scatter_reduce", "families.scatter.serial:FOLD[replace]"
)
def _(right: Any) -> Any:
    return lambda dtype, a, b: a


@planted(
    "16-bit updates of a place are rounded one by one",
    "scatter_reduce",
    "families.scatter.serial:NARROW",
)
def _(right: Any) -> Any:
    return ()
