"""Whose an op is: where a row of a plugin's op fails, its author looks at the op's record first.

A backend that refuses the op runs its decomposition, one on NumPy its reference: what is wrong
there says nothing about the backend.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from ptir.backend import entries
from ptir.backend.raised import GROUPS
from ptir.ops import OPS, numerics
from ptir.ops.record import Op, is_own
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.judge import judge
from ptir_testsuite.running.outcomes import Row
from ptir_testsuite.running.raised import named

FIRST: Final = "look at the op's record first"


def owner(op: Op) -> str:
    """The distribution and module that an op is from, or the module alone; nothing of ptir's own.

    A distribution is known where it declares a backend or a plugin.
    """
    if not op.module or is_own(op.module):
        return ""
    distribution = _distributions().get(op.module.partition(".")[0])
    module = f"module {op.module}"
    return f"{distribution} ({module})" if distribution else module


@cache
def _distributions() -> dict[str, str]:
    """The distribution of each top-level module that one with an entry point of ours has."""
    found: dict[str, str] = {}
    for entry in (entry for group in GROUPS for entry in entries.listed(group)):
        files = (entry.point and entry.point.dist and entry.point.dist.files) or ()
        tops = [path.parts[0].removesuffix(".py") for path in files]
        named = f"{entry.distribution} {entry.version}"
        found |= dict.fromkeys((*tops, entry.value.partition(":")[0].partition(".")[0]), named)
    return found


def with_owners(row: Row, names: Iterable[str]) -> Row:
    """A failed row, with a line for each of these ops that is not ptir's."""
    lines = [row.message] if row.failed else []
    for name in dict.fromkeys(names if row.failed else ()):
        if name in OPS and (whose := owner(OPS[name])):
            lines.append(f"  {name} is an op of {whose}: {FIRST}")
    return replace(row, message="\n".join(lines)) if len(lines) > 1 else row


def ran_nothing(case: Case) -> str:
    """The line of a case of which nothing ran."""
    whose = owner(OPS[case.op])
    if not whose:
        return ""
    lacks = "give it a decomposition, which every backend runs, or a profile that this one lacks"
    advice = FIRST if OPS[case.op].decomposition else lacks
    return f"  {case.op} is an op of {whose}: {advice}"


def ran_around(case: Case, ran: Iterable[str], refusal: str) -> str:
    """The line of a case that the backend ran by other ops than its own."""
    way = "lowering" if case.op == "composite" else "decomposition"
    refused = f"{case.op} ({refusal})" if refusal else f"a part of {case.op}"
    by = f"  the backend refuses {refused}: run by its {way}, {_listed(ran)}"
    whose = "" if case.op == "composite" else owner(OPS[case.op])
    return f"{by}; {case.op} is an op of {whose}: {FIRST}" if whose else by


def ran_itself(case: Case, terms: Terms) -> str:
    """The line of a case that the backend ran as it is: nothing of an op of ours."""
    whose = owner(OPS[case.op])
    if not whose:
        return ""
    return f"  {case.op} is an op of {whose}: {_reference(case, terms)}"


def _reference(case: Case, terms: Terms) -> str:
    """What becomes of the case where the record's own reference computes it on the host."""
    op = OPS[case.op]
    if op.regions:
        return FIRST
    try:
        with np.errstate(all="ignore"):
            given = op.reference(numerics, *case.arrays, **case.attributes)
    except Exception as error:  # noqa: BLE001  what a plugin's reference raises is what is told
        return f"its reference raises {named(error)}: {FIRST}"
    results = given if isinstance(given, tuple) else (np.asarray(given),)
    if judge(case, results, terms).message:
        return f"its reference gives a wrong result for these operands: {FIRST}"
    return "its reference gives the right result for these operands"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
