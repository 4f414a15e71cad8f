"""When a result agrees with a witness whose own answer was rounded too.

Where a program leaves one result open (nothing rounds, or one op rounds correctly), the witness
must give it bit for bit. Otherwise the result must lie inside the program's enclosure, and the
witness, which computed in the same precision but perhaps by another formula, inside the enclosure
widened once by its own width. NaN and infinities must coincide before any bound is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir_testsuite.witness.spans import Span

Array = np.ndarray[Any, np.dtype[Any]]


def disagreement(found: Array, expected: Array, span: Span | None) -> str:
    """How ``found`` and ``expected`` disagree, or nothing; without ``span`` they must be equal."""
    if found.dtype != expected.dtype:
        return f"gave {found.dtype}, expected {expected.dtype}"
    if found.shape != expected.shape:
        return f"gave shape {list(found.shape)}, expected {list(expected.shape)}"
    if span is None:
        return _report(found, expected, ~_identical(found, expected), "must be equal")
    x, e = found.astype(np.float64), expected.astype(np.float64)
    low, high = (bound.astype(np.float64) for bound in (span.low, span.high))
    special = ~(np.isfinite(x) & np.isfinite(e))
    same = special & _identical(found, expected)
    with np.errstate(all="ignore"):
        width = high - low
        inside = (low <= x) & (x <= high)
        near = (low - width <= e) & (e <= high + width)
    wrong = _report(found, expected, ~(same | inside), "outside the enclosure", low, high)
    if wrong:
        return wrong
    return _report(
        found, expected, ~(same | (near & ~special)), "the witness is outside", low, high
    )


def _identical(found: Array, expected: Array) -> Array:
    if found.dtype.kind in "biu":
        return np.asarray(found == expected)
    x, e = found.astype(np.float64), expected.astype(np.float64)
    equal = (x == e) & (np.signbit(x) == np.signbit(e))
    return np.asarray(equal | (np.isnan(x) & np.isnan(e)))


def _report(found: Array, expected: Array, wrong: Array, rule: str, *bounds: Array) -> str:
    if not np.any(wrong):
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    given = f"{found[at]!s} at {list(at)}, the witness says {expected[at]!s}: {rule}"
    inside = f" {bounds[0][at]!r} .. {bounds[1][at]!r}" if bounds else ""
    return f"{given}{inside} ({int(np.sum(wrong))} of {wrong.size} elements)"
