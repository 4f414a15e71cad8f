"""How errors travel: for each continuous op, a bound of its result's error from its operands'.

First an op hands its operands' errors on (a row of ``RULES``), then it adds its own. An op without
a row takes only exact values. Bounds are generous and sound: what is not finite says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ptir.ops.record import Op
from ptir.types import DTYPES, TensorType
from ptir_testsuite.oracles import ORACLES, Given
from ptir_testsuite.oracles.accuracy import Bound
from ptir_testsuite.oracles.expected import Expected
from ptir_testsuite.oracles.floats import FORMATS, Array, doubles, format_of

Rule = Callable[[Given, Sequence[Array]], Array]

RULES: Final[dict[str, Rule]] = {}


def is_continuous(op: Op) -> bool:
    """Whether errors of the op's operands can be followed through it."""
    return op.name in RULES or "movement" in op.traits


def handed_on(op: Op, given: Given, errors: Sequence[Array]) -> list[Array]:
    """The errors of the results that come from the operands'."""
    if not any(bool(e.any()) for e in errors):
        return [np.zeros(t.shape) for t in given.results]
    if not is_continuous(op):
        return [np.full(t.shape, math.inf) for t in given.results]
    rule = RULES.get(op.name, _moved)
    with np.errstate(all="ignore"):
        return [np.asarray(rule(given, errors))]


def added(expected: Expected, type: TensorType, bound: Bound, error: Array) -> Array:
    """The error of a result: what was handed on and the op's own, rounding included."""
    if not type.dtype.is_float:
        return error  # of what follows approximate values: not one says nothing, zero is exact
    format = format_of(type.dtype)
    with np.errstate(all="ignore"):
        size = np.abs(doubles(expected.values)) + error
        size = np.where(np.isfinite(size), size, format.largest)
        exponents = np.clip(np.frexp(size)[1] - 1, format.emin, format.emax)
        unit = np.ldexp(1.0, exponents - format.precision + 1)
        own = unit * (bound.ulps + 1) if bound.kind == "ulp" else np.zeros(type.shape)
        if expected.terms is not None and expected.magnitude is not None:
            into = FORMATS["f32"] if type.dtype.bits < 32 else format
            sums = (2 * expected.terms * into.unit + bound.extra) * (expected.magnitude + error)
            own = own + sums + expected.terms * into.tiny
            own = np.where(np.asarray(expected.free), math.inf, own)
        total = np.where(error > 0, error + unit, error) + own
    return np.asarray(total)


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


def _wide(array: Array) -> Array:
    return np.abs(doubles(array))


@_rule("neg", "abs", "stop_gradient", "tanh")
def _same(given: Given, errors: Sequence[Array]) -> Array:
    return errors[0]


@_rule("sin", "cos")
def _bounded(given: Given, errors: Sequence[Array]) -> Array:
    return np.minimum(errors[0], 2.0)


@_rule("erf")
def _erf(given: Given, errors: Sequence[Array]) -> Array:
    return errors[0] * 1.1284


@_rule("exp")
def _exp(given: Given, errors: Sequence[Array]) -> Array:
    return np.asarray(np.exp(doubles(given.arrays[0])) * np.expm1(errors[0]) * 1.0001)


@_rule("sqrt")
def _sqrt(given: Given, errors: Sequence[Array]) -> Array:
    x, e = doubles(given.arrays[0]), errors[0]
    inside = (np.sqrt(x + e) - np.sqrt(np.maximum(x - e, 0.0))) * 1.0001
    return np.where((x < 0) | (x - e >= 0), inside, math.inf)


@_rule("add", "sub")
def _add(given: Given, errors: Sequence[Array]) -> Array:
    return np.asarray(errors[0] + errors[1])


@_rule("mul")
def _mul(given: Given, errors: Sequence[Array]) -> Array:
    (x, y), (e, f) = map(_wide, given.arrays), errors
    return np.asarray(np.where(f > 0, x * f, 0.0) + np.where(e > 0, y * e, 0.0) + e * f)


@_rule("div")
def _div(given: Given, errors: Sequence[Array]) -> Array:
    (x, y), (e, f) = map(_wide, given.arrays), errors
    return np.where(y > f, (e + x / y * f) / (y - f) * 1.0001, math.inf)


@_rule("maximum", "minimum", "clamp")
def _largest(given: Given, errors: Sequence[Array]) -> Array:
    return np.asarray(np.max(np.stack(list(errors)), axis=0))


@_rule("reduce")
def _reduce(given: Given, errors: Sequence[Array]) -> Array:
    kinds = {"sum": "sum", "max": "max", "min": "max"}
    if given["kind"] not in kinds:
        return np.full(given.results[0].shape, math.inf)
    axes = tuple(given["axes"])
    fold = np.sum if given["kind"] == "sum" else np.max
    return np.asarray(fold(errors[0], axis=axes, initial=0.0))


@_rule("dot_general")
def _dot(given: Given, errors: Sequence[Array]) -> Array:
    (x, y), (e, f) = map(_wide, given.arrays), errors
    ends = zip((x, e, e), (f, y, f), strict=True)
    return np.asarray(sum(_through(given, pair) for pair in ends) * 1.0001)


@_rule("select")
def _moved(given: Given, errors: Sequence[Array]) -> Array:
    """Errors travel with the elements: the same movement, made on the errors."""
    pairs = zip(given.arrays, errors, given.types, strict=True)
    return _through(given, [e if t.dtype.is_float else a for a, e, t in pairs])


def _through(given: Given, arrays: Sequence[Any]) -> Array:
    """The op's own oracle on doubles in the place of its float operands."""
    wide = DTYPES["f64"]
    types = tuple(t.with_dtype(wide) if t.dtype.is_float else t for t in given.types)
    results = tuple(t.with_dtype(wide) if t.dtype.is_float else t for t in given.results)
    changed = replace(given, arrays=tuple(arrays), types=types, results=results)
    (found,) = ORACLES[given.op](changed)
    return found.values
