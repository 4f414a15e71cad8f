"""Oracles of reductions, running folds, positions of extremes and orders along an axis."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ptir.types import DType, TensorType
from ptir_testsuite.oracles.elementwise import greater, lesser
from ptir_testsuite.oracles.expected import Expected, exactly, from_outcomes
from ptir_testsuite.oracles.floats import python_values, stored
from ptir_testsuite.oracles.movement import lines
from ptir_testsuite.oracles.sums import (
    Total,
    accumulator,
    from_totals,
    product_of,
    running_sums,
    sum_of,
)
from ptir_testsuite.oracles.table import Given, oracle


def fold(groups: Sequence[list[Any]], kind: str, type: TensorType) -> Expected:
    """Each group of elements folded; ``type`` is the result's."""
    if type.dtype.is_float and kind in ("sum", "prod"):
        into, add = accumulator(type), sum_of if kind == "sum" else product_of
        return from_totals([add(group, into) for group in groups], type)
    return from_outcomes([_fold(group, kind, type) for group in groups], type)


def _fold(group: list[Any], kind: str, type: TensorType) -> Any:
    if kind in ("any", "all"):
        return any(group) if kind == "any" else all(group)
    if kind in ("sum", "prod"):
        return sum(group) if kind == "sum" else math.prod(group)
    return functools.reduce(EXTREME[kind], group) if group else _worst(kind, type.dtype)


EXTREME: Final[dict[str, Callable[[Any, Any], Any]]] = {"max": greater, "min": lesser}


def identity(kind: str, dtype: DType) -> Any:
    """What a fold of nothing gives."""
    if kind in ("max", "min"):
        return _worst(kind, dtype)
    return {"sum": 0, "prod": 1, "any": False, "all": True}[kind]


def _worst(kind: str, dtype: DType) -> Any:
    if dtype.is_float:
        return -math.inf if kind == "max" else math.inf
    signed = dtype.kind == "int"
    low, high = -(1 << (dtype.bits - 1)) if signed else 0, (1 << (dtype.bits - signed)) - 1
    return low if kind == "max" else high


@oracle("reduce")
def _reduce(given: Given) -> list[Expected]:
    operand, (result,) = given.arrays[0], given.results
    kept = [a for a in range(operand.ndim) if a not in given["axes"]]
    groups = []
    for index in np.ndindex(*result.shape):
        at: list[Any] = [slice(None)] * operand.ndim
        for axis, i in zip(kept, index, strict=True):
            at[axis] = i
        groups.append(python_values(np.asarray(operand[tuple(at)]), result.dtype))
    return [fold(groups, given["kind"], result)]


@oracle("cumulative")
def _cumulative(given: Given) -> list[Expected]:
    operand, (result,), kind = given.arrays[0], given.results, given["kind"]
    floats = result.dtype.is_float and kind == "sum"
    into = accumulator(result) if floats else None
    columns = np.empty(operand.shape, object)
    for place, line in lines(operand, given["axis"]):
        values = python_values(line, result.dtype)
        if into is not None:
            found: list[Any] = list(running_sums(values, into))
        else:
            step = EXTREME[kind] if kind in EXTREME else (lambda a, b: a + b)
            found = list(itertools.accumulate(values, step))
        for i, one in enumerate(found):
            columns[tuple(i if isinstance(p, slice) else p for p in place)] = one
    flat: list[Any] = columns.reshape(-1).tolist()
    if flat and isinstance(flat[0], Total):
        return [from_totals(flat, result)]
    return [from_outcomes(flat, result)]


@oracle("arg_max", "arg_min")
def _arg_extreme(given: Given) -> list[Expected]:
    operand, (result,) = given.arrays[0], given.results
    better = (lambda a, b: a > b) if given.op == "arg_max" else (lambda a, b: a < b)
    found = []
    for _, line in lines(operand, given["axis"]):
        found.append(_first_extreme(python_values(line, given.types[0].dtype), better))
    return [exactly(stored(found, result.dtype, result.shape))]


def _first_extreme(values: list[Any], better: Callable[[Any, Any], bool]) -> int:
    best = 0
    for i, value in enumerate(values):
        if value != value:
            return i
        if better(value, values[best]):
            best = i
    return best


def order_of(values: list[Any], descending: bool) -> list[int]:
    """The stable order of a line: NaN last both ways, and -0 equal to +0."""
    numbers = [i for i, v in enumerate(values) if v == v]
    numbers.sort(key=lambda i: -values[i] if descending else values[i])
    return numbers + [i for i, v in enumerate(values) if v != v]


def _ordered(given: Given, axis: int, keep: int, descending: bool) -> list[Expected]:
    operand = given.arrays[0]
    values, indices = (np.empty(t.shape, t.dtype.numpy) for t in given.results)
    for place, line in lines(operand, axis):
        order = order_of(python_values(line, given.types[0].dtype), descending)[:keep]
        for to, source in enumerate(order):
            at = tuple(to if isinstance(p, slice) else p for p in place)
            values[at], indices[at] = line[source], source
    return [exactly(values), exactly(indices)]


@oracle("sort")
def _sort(given: Given) -> list[Expected]:
    axis = given["axis"]
    return _ordered(given, axis, given.types[0].shape[axis], given["descending"])


@oracle("top_k")
def _top_k(given: Given) -> list[Expected]:
    return _ordered(given, given.types[0].rank - 1, given["k"], True)
