"""Comparing a result with its oracle: form, NaN, infinities and zeros before any tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptir.types import DType, TensorType, dtype_of
from ptir_testsuite.oracles.accuracy import BIAS, FEWEST, SQUARES, Bound, Terms
from ptir_testsuite.oracles.expected import Expected
from ptir_testsuite.oracles.floats import FORMATS, Array, doubles, format_of, round_float, ulp


@dataclass(frozen=True)
class Fault:
    """Where a result is wrong: the worst element, what it should be, and by how much it is off.

    ``bits`` are those of both elements, expected and actual, in hex; where the form is wrong there
    are none: then ``expected`` and ``actual`` are types.
    """

    index: tuple[int, ...]
    expected: str
    actual: str
    error: str
    count: int = 1
    size: int = 1
    bits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What a comparison found: a fault or none, and the worst error.

    It is in ULP; for sums, where cancellation makes ULP meaningless, ``worst_share`` is the error
    as a share of the bound.
    """

    fault: Fault | None
    worst_ulp: float = 0.0
    worst_share: float | None = None


def compare(
    actual: Any, expected: Expected, type: TensorType, bound: Bound, terms: Terms
) -> Verdict:
    """Whether a downloaded result is what the oracle says, within its bound."""
    wrong = _wrong_form(actual, type)
    if wrong is not None:
        return Verdict(wrong, math.inf)
    if not type.dtype.is_float:
        verdict = _discrete(actual, expected.values, type)
    elif type.size == 0:
        return Verdict(None)
    else:
        with np.errstate(all="ignore"):
            verdict = _Floats(actual, expected, type, bound, terms).verdict()
    fault = verdict.fault
    if fault is None:
        return verdict
    found = tuple(bits(a[fault.index], type.dtype) for a in (expected.values, actual))
    return replace(verdict, fault=replace(fault, bits=found))


def bits(value: Any, dtype: DType) -> str:
    """The bits of one element in hex, the highest byte first."""
    with np.errstate(all="ignore"):
        return "0x" + np.asarray(value, dtype.numpy).tobytes()[::-1].hex()


def _wrong_form(actual: Any, type: TensorType) -> Fault | None:
    if not isinstance(actual, np.ndarray):
        return Fault(
            (),
            str(type),
            f"of class {type_name(actual)}, no NumPy array",
            "the result is no NumPy array",
        )
    try:
        found = TensorType(dtype_of(actual), tuple(actual.shape))
    except Exception as error:  # noqa: BLE001  whatever the reason, the form is wrong
        return Fault((), str(type), str(actual.dtype), str(error))
    if found != type:
        return Fault((), str(type), str(found), "the result has another type")
    return None


def type_name(value: Any) -> str:
    """The name of a value's class."""
    return str(value.__class__.__name__)


def _discrete(actual: Array, wanted: Array, type: TensorType) -> Verdict:
    wrong = _bytes(actual) != _bytes(wanted) if type.dtype.kind == "bool" else actual != wanted
    if not np.any(wrong):
        return Verdict(None)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    shown = show(wanted[index], type.dtype), show(actual[index], type.dtype)
    return Verdict(Fault(index, *shown, "must be equal", int(np.sum(wrong)), type.size), math.inf)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.shape)


class _Floats:
    """One comparison of float tensors, laid out flat."""

    def __init__(
        self, actual: Array, expected: Expected, type: TensorType, bound: Bound, terms: Terms
    ) -> None:
        self.type, self.bound, self.terms = type, bound, terms
        self.format = format_of(type.dtype)
        self.into = FORMATS["f32"] if type.dtype.bits < 32 else self.format
        self.found, self.wanted = doubles(actual).reshape(-1), doubles(expected.values).reshape(-1)
        self.exact = self.wanted if expected.exact is None else expected.exact.reshape(-1)
        low = np.zeros(type.size) if expected.low is None else expected.low.reshape(-1)
        self.sums = bound.kind == "dot" and expected.terms is not None
        self.roundings = _flat(expected.terms, type)
        self.magnitude = _flat(expected.magnitude, type)
        self.free = _flat(expected.free, type) > 0
        self.error = np.where(self.found == self.exact, 0.0, self.found - self.exact) - low
        self.unit = _ulps(self.exact, self.wanted, type.dtype)
        self.errors = np.abs(self.error) / self.unit
        self.same = _same(self.found, self.wanted)

    def verdict(self) -> Verdict:
        """The fault, if any, and the worst error of the elements that are not left open."""
        wrong = ~(self.same | self._within() | self.free)
        if self.terms.flushes:
            wrong &= ~self._flushed()
        if wrong.any():
            return Verdict(self._fault(wrong), math.inf)
        counted = np.isfinite(self.errors) & ~self.free
        if self.sums:
            return Verdict(self._whole(), 0.0, self._share(counted))
        return Verdict(None, float(self.errors[counted].max()) if counted.any() else 0.0)

    def _share(self, counted: Array) -> float:
        allowed = self.allowed() + self.unit / 2  # 0 for a sum of nothing, which is then exact
        share = np.where(self.error == 0, 0.0, np.abs(self.error) / allowed)
        return float(share[counted].max()) if counted.any() else 0.0

    def _within(self) -> Array:
        """Elements off by no more than the bound; never where NaN or exact zeros are involved."""
        if self.bound.kind == "ulp":
            return self._within_ulps(self.bound.ulps)
        return self._within_sum() if self.sums else np.zeros(self.type.size, bool)

    def _within_ulps(self, ulps: float) -> Array:
        plain = np.isfinite(self.found) & np.isfinite(self.exact) & (self.errors <= ulps)
        signs = (self.found != 0) | (self.wanted != 0)
        edge = self.format.largest + ulp(self.format.largest, self.format) / 2
        over = np.isinf(self.found) & (np.sign(self.found) == np.sign(self.exact))
        over &= np.isfinite(self.exact) & (np.abs(self.exact) + ulps * self.unit >= edge)
        return np.asarray((plain & signs & (self.exact != 0)) | over)

    def allowed(self) -> Array:
        """The absolute error that every sum may have, before it is rounded to the result."""
        share = self.roundings * self.into.unit
        relative = share / (1 - np.minimum(share, 0.5)) + self.bound.extra
        return np.asarray(relative * self.magnitude + self.roundings * self.into.tiny)

    def _within_sum(self) -> Array:
        allowed = self.allowed()
        result = (self.found == 0) & (self.wanted == 0)
        asked = np.isfinite(self.exact) & ~np.isnan(self.found) & ~self.same & ~result
        for at in np.flatnonzero(asked):
            low, high = self.exact[at] - allowed[at], self.exact[at] + allowed[at]
            low, high = (round_float(float(end), self.format) for end in (low, high))
            result[at] = low <= self.found[at] <= high
        return np.asarray(result)

    def _flushed(self) -> Array:
        """Zeros where the exact result is subnormal."""
        small = (np.abs(self.exact) < self.format.normal) & np.isfinite(self.exact)
        return np.asarray((self.found == 0) & small)

    def _whole(self) -> Fault | None:
        """TOSA's checks of a whole tensor of sums: the mean error and the mean squared error."""
        scale = self.into.unit * self.magnitude
        usable = np.isfinite(self.found) & np.isfinite(self.exact) & (scale > self.into.tiny)
        usable &= ~self.free
        if int(usable.sum()) < FEWEST or self.bound.extra:
            return None
        own = 0.0 if self.into is self.format else self.unit / 2
        rest = np.maximum(np.abs(self.error) - own, 0.0) * np.sign(self.error)
        errors = rest[usable] / scale[usable]
        most = max(float(self.roundings[usable].max()), 1.0)
        mean, squares = float(errors.mean()), float(np.square(errors).mean())
        bias, spread = BIAS * math.sqrt(most / len(errors)), SQUARES * most
        worst = int(np.flatnonzero(usable)[np.abs(errors).argmax()])
        if abs(mean) > bias:
            text = f"whole tensor: the mean error is {mean:.3g} roundings, {bias:.3g} allowed"
            return self._at(worst, text, len(errors))
        if squares > spread:
            text = f"whole tensor: the mean squared error is {squares:.3g}, {spread:.3g} allowed"
            return self._at(worst, text, len(errors))
        return None

    def _fault(self, wrong: Array) -> Fault:
        badness = np.where(np.isfinite(self.errors), self.errors, np.inf)
        at = int(np.where(wrong, badness, -1.0).argmax())
        return self._at(at, self._described(at), int(wrong.sum()))

    def _described(self, at: int) -> str:
        if not np.isfinite(self.found[at]) or not np.isfinite(self.wanted[at]):
            return f"NaN and infinities must agree ({self.bound})"
        if self.found[at] == self.wanted[at] == 0:
            return "the sign of zero is lost"
        zero = self.exact[at] == 0
        off = f"off by {abs(self.error[at]):.3g}" if zero else f"{self.errors[at]:.3g} ULP off"
        if self.sums:
            error, allowed = abs(self.error[at]), float(self.allowed()[at])
            return f"{off}: error {error:.3g}, bound of the sum {allowed:.3g}"
        return f"{off}; allowed: {self.bound}"

    def _at(self, at: int, text: str, count: int) -> Fault:
        dtype = self.type.dtype
        index = tuple(int(i) for i in np.unravel_index(at, self.type.shape))
        shown = show(self.wanted[at], dtype), show(self.found[at], dtype)
        return Fault(index, *shown, text, count, self.type.size)


def _flat(array: Array | None, type: TensorType) -> Array:
    return np.zeros(type.size) if array is None else array.reshape(-1)


def _ulps(exact: Array, wanted: Array, dtype: DType) -> Array:
    """The size of an ULP of ``dtype`` at every element."""
    format = format_of(dtype)
    size = np.where(np.isfinite(exact), np.abs(exact), np.abs(wanted))
    size = np.where(np.isfinite(size), size, format.largest)
    exponents = np.clip(np.frexp(size)[1] - 1, format.emin, format.emax)
    exponents = np.where(size == 0, format.emin, exponents)
    return np.asarray(np.ldexp(1.0, exponents - format.precision + 1))


def _same(found: Array, wanted: Array) -> Array:
    """Equal with the signs of zeros, any NaN for a NaN."""
    equal = (found == wanted) & (np.signbit(found) == np.signbit(wanted))
    return np.asarray(equal | (np.isnan(found) & np.isnan(wanted)))


def show(value: Any, dtype: DType) -> str:
    """One element for a reader: the shortest exact decimal of its dtype."""
    if not dtype.is_float:
        return str(value)
    number = float(value)
    return repr(number) if dtype.bits > 32 else f"{number:.9g}"
