"""What a case's results must be, and what a reader is told when they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from ptir.ops import OPS
from ptir.types import TensorType
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.oracles import ORACLES, Given, NoOracleError
from ptir_testsuite.oracles.accuracy import EXACT, Terms, bound_of
from ptir_testsuite.oracles.expected import Expected, exactly
from ptir_testsuite.oracles.floats import format_of
from ptir_testsuite.running.compare import Fault, Verdict, compare, show


@dataclass(frozen=True)
class Judgement:
    """Whether results are right: a message where they are not, and the worst errors."""

    message: str = ""
    worst_ulp: float | None = None
    worst_share: float | None = None
    facts: dict[str, Any] | None = None


def expectations(case: Case, arrays: Sequence[Any]) -> list[Expected] | None:
    """What the oracle says about the case's call on these operands; None where there is none."""
    given = Given(case.op, tuple(arrays), case.types, case.attributes, case.results, case.regions)
    return evaluated(given)


MANY: Final = 512
"""Elements from which on it is worth while to look for equal ones."""


def evaluated(given: Given) -> list[Expected] | None:
    """What the oracle says of a call; None where there is none, or it says nothing."""
    if given.op not in ORACLES:
        return None
    try:
        with np.errstate(all="ignore"):
            if "elementwise" in OPS[given.op].traits and given.results[0].size >= MANY:
                return _once_each(given)
            return list(ORACLES[given.op](given))
    except NoOracleError:
        return None


def _once_each(given: Given) -> list[Expected]:
    """What an elementwise op must give, from an oracle that sees equal operands once."""
    bits = [
        np.ascontiguousarray(a).reshape(-1, 1).view(np.uint8).reshape(a.size, -1)
        for a in given.arrays
    ]
    rows = np.ascontiguousarray(np.concatenate(bits, axis=1))
    whole = rows.view([("bits", np.void, rows.shape[1])]).reshape(-1)
    _, first, places = np.unique(whole, return_index=True, return_inverse=True)
    few = replace(
        given,
        arrays=tuple(a.reshape(-1)[first] for a in given.arrays),
        types=tuple(t.with_shape((len(first),)) for t in given.types),
        results=tuple(t.with_shape((len(first),)) for t in given.results),
    )
    shape = given.results[0].shape
    return [_spread(one, places.reshape(-1), shape) for one in ORACLES[given.op](few)]


def _spread(one: Expected, places: Any, shape: tuple[int, ...]) -> Expected:
    def column(found: Any) -> Any:
        return None if found is None else found[places].reshape(shape)

    return Expected(*(column(getattr(one, field.name)) for field in fields(one)))


def judge(case: Case, results: Sequence[Any], terms: Terms) -> Judgement:
    """Compare the downloaded results of a case with its oracle and its sample's literals."""
    count = len(case.results)
    sources = _sources(case, terms)
    judgement = Judgement()
    for number, (result, type) in enumerate(zip(results, case.results, strict=False)):
        verdict = _best([_compared(case, result, s[number], type, terms) for s in sources])
        if verdict.fault is not None:
            return _described(case, number, verdict.fault)
        plain = type.dtype.is_float and verdict.worst_share is None
        judgement = Judgement(
            worst_ulp=_larger(judgement.worst_ulp, verdict.worst_ulp if plain else None),
            worst_share=_larger(judgement.worst_share, verdict.worst_share),
        )
    for number, kept in enumerate(results[count:]):
        fault = compare(kept, exactly(case.arrays[number]), case.types[number], EXACT, terms).fault
        if fault is not None:
            return _described(case, count + number, fault, "an operand that is also an output")
    return judgement


def _sources(case: Case, terms: Terms) -> list[list[Expected]]:
    """Everything that may be right: the oracle's word, or with flushing that on flushed operands.

    A sample's literals are a check of the record, made where there is no oracle.
    """
    found = expectations(case, case.arrays)
    if found is None:
        return [[_literal(c.numpy()) for c in case.gives]]
    if not terms.flushes:
        return [found]
    flushed = expectations(
        case, [_flushed(a, t) for a, t in zip(case.arrays, case.types, strict=True)]
    )
    return [found, flushed or found]


def _literal(array: Any) -> Expected:
    if array.dtype.kind in "biu":
        return exactly(array)
    wide = array.astype(np.float64)
    return Expected(array, wide, np.zeros_like(wide))


def _flushed(array: Any, type: TensorType) -> Any:
    if not type.dtype.is_float:
        return array
    small = np.abs(array.astype(np.float64)) < format_of(type.dtype).normal
    zeros = np.copysign(0.0, array.astype(np.float64)).astype(array.dtype)
    return np.where(small, zeros, array)


def _compared(
    case: Case, result: Any, expected: Expected, type: TensorType, terms: Terms
) -> Verdict:
    return compare(result, expected, type, bound_of(OPS[case.op], type.dtype, terms), terms)


def _best(verdicts: Sequence[Verdict]) -> Verdict:
    return min(verdicts, key=lambda v: (v.fault is not None, v.worst_ulp))


def _larger(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def _described(case: Case, number: int, fault: Fault, what: str = "") -> Judgement:
    place = f"result {number}" if len(case.results) > 1 or what else "the result"
    at = f"[{', '.join(map(str, fault.index))}]"
    if fault.bits:
        lines = [
            f"{case.call}: {what or place} is wrong in {fault.count} of {fault.size} elements",
            f"  worst element {at}: expected {fault.expected}, got {fault.actual}; {fault.error}",
            *(f"  {line}" for line in _inputs_at(case, fault.index)),
        ]
    else:
        lines = [f"{case.call}: {what or place} is {fault.actual}; it must be {fault.expected}"]
    lines.append(f"  case {case.id} ({case.origin})")
    facts: dict[str, Any] = {
        "worst_index": list(fault.index),
        "expected": fault.expected,
        "actual": fault.actual,
        "error": fault.error,
        "wrong": fault.count,
        "elements": fault.size,
    }
    if fault.bits:
        facts |= dict(zip(("expected_hex", "actual_hex"), fault.bits, strict=True))
    return Judgement("\n".join(lines), facts=facts)


SHOWN = 8


def _inputs_at(case: Case, index: tuple[int, ...]) -> list[str]:
    """The operands where the worst element came from: there, or their first elements."""
    lines = []
    names = OPS[case.op].operands
    for place, (array, type) in enumerate(zip(case.arrays, case.types, strict=True)):
        name = names[min(place, len(names) - 1)].rstrip("*")
        if "elementwise" in OPS[case.op].traits and len(index) == array.ndim:
            lines.append(f"{name}{list(index)} = {show(array[index], type.dtype)}")
            continue
        first = ", ".join(show(v, type.dtype) for v in array.reshape(-1)[:SHOWN])
        more = ", ..." if array.size > SHOWN else ""
        lines.append(f"{name} = {type} [{first}{more}]")
    return lines
