"""Oracles of gather, scatter and segments: places are read and written one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ptir.types import DType
from ptir_testsuite.oracles.elementwise import added, greater, lesser, multiplied
from ptir_testsuite.oracles.expected import Expected, exactly, from_outcomes
from ptir_testsuite.oracles.floats import FORMATS, format_of, python_values, rounded, wrapped
from ptir_testsuite.oracles.folds import identity
from ptir_testsuite.oracles.table import Given, oracle

Index = tuple[int, ...]


def _address(given: Given, index: Index) -> tuple[Index, Index]:
    """The place that a result index of gather names: its indices, and the rest of its axes."""
    indices, batch = given.arrays[1], given["batch"]
    outer = indices.ndim - 1
    found = tuple(int(i) for i in indices[index[:outer]])
    return found, (*index[:batch], *index[outer:])


def _complete(given: Given, chosen: Index, others: Index) -> Index:
    """An operand index from the indexed axes' places and the other axes', in order."""
    axes, rest = given["axes"], iter(others)
    places = dict(zip(axes, chosen, strict=True))
    return tuple(places[a] if a in places else next(rest) for a in range(given.types[0].rank))


@oracle("gather")
def _gather(given: Given) -> list[Expected]:
    operand, (result,) = given.arrays[0], given.results
    out = np.empty(result.shape, operand.dtype)
    sizes = [operand.shape[a] for a in given["axes"]]
    for index in np.ndindex(*result.shape):
        found, others = _address(given, index)
        inside = tuple(min(max(i, 0), n - 1) for i, n in zip(found, sizes, strict=True))
        out[index] = operand[_complete(given, inside, others)]
    return [exactly(out)]


@oracle("scatter_reduce")
def _scatter_reduce(given: Given) -> list[Expected]:
    operand, _, updates = given.arrays
    dtype, kind = given.types[0].dtype, given["kind"]
    sizes = [operand.shape[a] for a in given["axes"]]
    number = np.arange(operand.size).reshape(operand.shape)
    values, new = python_values(operand, dtype), python_values(updates, dtype)
    touched = set()
    for value, index in zip(new, np.ndindex(*updates.shape), strict=True):
        found, others = _address(given, index)
        if all(0 <= i < n for i, n in zip(found, sizes, strict=True)):
            at = int(number[_complete(given, found, others)])
            values[at] = folded(kind, values[at], value, dtype)
            touched.add(at)
    return [_kept_elsewhere(operand, values, touched, given)]


def _kept_elsewhere(operand: Any, values: list[Any], touched: set[int], given: Given) -> Expected:
    (result,) = given.results
    expected = from_outcomes([finished(v, result.dtype) for v in values], result)
    kept = np.array([i not in touched for i in range(len(values))], bool).reshape(result.shape)
    return Expected(np.where(kept, operand, expected.values), expected.exact, expected.low)


@oracle("segment_reduce")
def _segment_reduce(given: Given) -> list[Expected]:
    operand, ids = given.arrays
    (result,), kind = given.results, given["kind"]
    width = math.prod(operand.shape[1:])
    values = [identity(kind, result.dtype)] * result.size
    rows = python_values(operand, result.dtype)
    for row, segment in enumerate(ids.tolist()):
        if 0 <= segment < given["segments"]:
            for column in range(width):
                at = segment * width + column
                values[at] = folded(kind, values[at], rows[row * width + column], result.dtype)
    return [from_outcomes([finished(v, result.dtype) for v in values], result)]


# --- folds one after the other, rounded at every step ---


def folded(kind: str, total: Any, value: Any, dtype: DType) -> Any:
    """The next value of a running fold; narrow floats are kept in f32 until ``finished``."""
    if kind == "replace":
        return value
    outcome = STEPS[kind](total, value, dtype)
    if isinstance(outcome, tuple):
        return rounded(outcome, FORMATS["f32"] if dtype.bits < 32 else format_of(dtype))
    return outcome if dtype.is_float else wrapped(outcome, dtype)


STEPS: Final[dict[str, Callable[[Any, Any, DType], Any]]] = {
    "add": added,
    "sum": added,
    "mul": multiplied,
    "prod": multiplied,
    "max": lambda a, b, dtype: greater(a, b),
    "min": lambda a, b, dtype: lesser(a, b),
}


def finished(value: Any, dtype: DType) -> Any:
    """A running fold as an outcome that is rounded to its dtype."""
    if dtype.is_float and math.isfinite(value) and value:
        return float(value).as_integer_ratio()
    return value
