"""ONNX operators that fold axes, order elements or run along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ptir import functional as F
from ptir.capture import Tensor, call, call_multi
from ptir.capture.tensor import full as scalar
from ptir.types import F32, I64
from ptir_testsuite.witnesses.onnx_import.table import Node, onnx_op, product, refuse

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]

KINDS: Final = {
    "ReduceSum": "sum",
    "ReduceProd": "prod",
    "ReduceMax": "max",
    "ReduceMin": "min",
}


def fold(x: Tensor, axes: tuple[int, ...], kind: str, keepdims: bool = True) -> Tensor:
    """One reduction, the folded axes kept with size 1 if wanted; bool folds by any and all."""
    if x.dtype.kind == "bool":
        kind = {"max": "any", "min": "all"}[kind]
    result = call("reduce", x, axes=axes, kind=kind)
    if not keepdims:
        return result
    return result.reshape(tuple(1 if a in axes else n for a, n in enumerate(x.shape)))


def mean_of(x: Tensor, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """The sum divided by the count."""
    return fold(x, axes, "sum", keepdims) / float(product([x.shape[a] for a in axes]))


def reduced_axes(node: Node) -> tuple[int, ...] | None:
    """Which axes to fold; None for none at all."""
    rank = node[0].ndim
    axes = node.ints(1, "axes")
    if axes:
        return tuple(sorted({a % rank for a in axes}))
    return None if node.attr("noop_with_empty_axes", 0) else tuple(range(rank))


def folded(kind: str) -> Reduction:
    """One reduction as a function of axes."""
    return lambda x, axes, keep: fold(x, axes, kind, keep)


REDUCTIONS: Final[dict[str, Reduction]] = {
    **{name: folded(kind) for name, kind in KINDS.items()},
    "ReduceMean": mean_of,
    "ReduceL1": lambda x, axes, keep: fold(F.abs(x), axes, "sum", keep),
    "ReduceL2": lambda x, axes, keep: F.sqrt(fold(x * x, axes, "sum", keep)),
    "ReduceSumSquare": lambda x, axes, keep: fold(x * x, axes, "sum", keep),
    "ReduceLogSum": lambda x, axes, keep: F.log(fold(x, axes, "sum", keep)),
    "ReduceLogSumExp": lambda x, axes, keep: log_sum_exp(x, axes, keep),
}


def log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    """Stable: the greatest element is taken out first, unless there is none."""
    greatest = fold(x, axes, "max")
    shift = F.where(F.is_finite(greatest), greatest, 0.0)
    summed = F.log(fold(F.exp(x - shift), axes, "sum")) + shift
    return summed if keep else fold(summed, axes, "max", False)


@onnx_op(*REDUCTIONS)
def reduction(node: Node) -> Tensor:
    """One fold over the axes given; without axes over all or, if so asked, none."""
    axes = reduced_axes(node)
    x = node[0]
    if axes is None:
        if node.op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"):
            return x
        axes = ()
    return REDUCTIONS[node.op](x, axes, bool(node.attr("keepdims", 1)))


@onnx_op("ArgMax", "ArgMin")
def arg_extreme(node: Node) -> Tensor:
    """The first extreme or, read backwards, the last one; i64."""
    x = node[0]
    axis, name = node.axis(0, x.ndim), {"ArgMax": "arg_max", "ArgMin": "arg_min"}[node.op]
    if node.attr("select_last_index", 0):
        found = call(name, call("reverse", x, axes=(axis,)), axis=axis)
        found = scalar(x.shape[axis] - 1, found.dtype, found.shape) - found
    else:
        found = call(name, x, axis=axis)
    if node.attr("keepdims", 1):
        found = found.reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return found.astype(I64)


@onnx_op("Hardmax", since=13)
def hardmax(node: Node) -> Tensor:
    """1 at the first greatest element of a line, else 0."""
    x = node[0]
    axis = node.axis(-1, x.ndim)
    chosen = call("arg_max", x, axis=axis)
    chosen = chosen.reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    places = call("iota", shape=x.shape, dtype=chosen.dtype, axis=axis)
    return (places == chosen).astype(x.dtype)


def softmax_of(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """exp(x - max) over its sum."""
    if x.dtype == F32 and len(axes) == 1:
        return F.softmax(x, axis=axes[0])
    weights = F.exp(x - fold(x, axes, "max"))
    return weights / fold(weights, axes, "sum")


def log_softmax_of(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """X - max less the logarithm of the sum of its exponentials."""
    moved = x - fold(x, axes, "max")
    return moved - F.log(fold(F.exp(moved), axes, "sum"))


@onnx_op("Softmax", "LogSoftmax", since=13)
def softmax(node: Node) -> Tensor:
    """Along one axis, the last by default."""
    function = softmax_of if node.op == "Softmax" else log_softmax_of
    return function(node[0], (node.axis(-1, node[0].ndim),))


@onnx_op("Softmax", "LogSoftmax", "Hardmax")
def flat_softmax(node: Node) -> Tensor:
    """Before version 13: over all axes from the given one on, 1 by default."""
    if node.op == "Hardmax":
        raise refuse("Hardmax before version 13")
    function = softmax_of if node.op == "Softmax" else log_softmax_of
    return function(node[0], tuple(range(node.axis(1, node[0].ndim), node[0].ndim)))


@onnx_op("CumSum", "CumProd")
def cumulative(node: Node) -> Tensor:
    """A running sum or product, perhaps backwards, perhaps without the element itself."""
    x = node[0]
    (axis,) = node.ints(1) or (0,)
    axis %= x.ndim
    backwards = bool(node.attr("reverse", 0))
    if backwards:
        x = call("reverse", x, axes=(axis,))
    start = 0 if node.op == "CumSum" else 1
    if node.attr("exclusive", 0):
        x = shifted(x, axis, 1, start)
    x = call("cumulative", x, axis=axis, kind="sum") if start == 0 else running_product(x, axis)
    return call("reverse", x, axes=(axis,)) if backwards else x


def shifted(x: Tensor, axis: int, by: int, fill: int) -> Tensor:
    """Elements moved up by some places; ``fill`` moves in."""
    low = tuple(by if a == axis else 0 for a in range(x.ndim))
    high = tuple(-by if a == axis else 0 for a in range(x.ndim))
    return call("pad", x, scalar(fill, x.dtype), low=low, high=high)


def running_product(x: Tensor, axis: int) -> Tensor:
    """Products of 1, 2, 4, ... neighbours in turn: the op set has no running product."""
    reach = 1
    while reach < x.shape[axis]:
        x = call("mul", x, shifted(x, axis, reach, 1))
        reach *= 2
    return x


@onnx_op("TopK")
def top_k(node: Node) -> tuple[Tensor, Tensor]:
    """Values and i64 indices along an axis, greatest or least first."""
    x = node[0]
    axis = node.axis(-1, x.ndim)
    (k,) = node.ints(1, "k") or (1,)
    largest = bool(node.attr("largest", 1))
    if largest and axis == x.ndim - 1:
        values, indices = call_multi("top_k", x, k=k)
        return values, indices.astype(I64)
    values, indices = call_multi("sort", x, axis=axis, descending=largest)
    starts = (0,) * x.ndim
    limits = tuple(k if a == axis else n for a, n in enumerate(x.shape))
    first = [call("slice", v, starts=starts, limits=limits) for v in (values, indices)]
    return first[0], first[1].astype(I64)


@onnx_op("LpNormalization")
def lp_normalization(node: Node) -> Tensor:
    """Divided by the norm along an axis; a line of zeros stays."""
    x = node[0]
    axes = (node.axis(-1, x.ndim),)
    name = {1: "ReduceL1", 2: "ReduceL2"}[int(node.attr("p", 2))]
    norm = REDUCTIONS[name](x, axes, True)
    return F.where(norm == 0.0, 0.0, x / norm)
