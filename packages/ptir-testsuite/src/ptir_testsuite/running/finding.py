"""From an id to the item that it names, without deriving more of the corpus than its op's part."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Final

from ptir.errors import UsageError
from ptir.ops import OPS
from ptir_testsuite.corpus.composites import CALLS, CompositeCall
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.models import model_runs
from ptir_testsuite.corpus.needs import NEEDS
from ptir_testsuite.corpus.stored import stored
from ptir_testsuite.corpus.sweeps import sweeps_of
from ptir_testsuite.corpus.weights import weight_calls
from ptir_testsuite.running.items import Item
from ptir_testsuite.running.kinds.lifetime import lifetimes
from ptir_testsuite.running.kinds.programs import RandomProgram
from ptir_testsuite.running.kinds.refusals import refusals

_PROGRAM: Final = re.compile(r"program-(\d{1,18})-(\d{1,18})")
_COMPOSITE: Final = re.compile(r"composite-(\w+)-(\d+)")


def item_of(id: str) -> Item:
    """The item called ``id``; raises ``UsageError`` where there is none, with the nearest ids."""
    if match := _PROGRAM.fullmatch(id):
        return RandomProgram(int(match[1]), int(match[2]))
    if match := _COMPOSITE.fullmatch(id):
        return _among(id, _composites(match[1]))
    if id.startswith("weights-"):
        return _among(id, weight_calls())
    if id.startswith("regression-"):
        return _among(id, stored())
    if id.startswith("model-"):
        return _among(id, model_runs())
    if id.startswith("lifetime-"):
        return _among(id, lifetimes())
    op, _, kind = id.rpartition("-")[0].partition("-")
    if kind not in ("", "refusal", *NEEDS):
        op = f"{op}-{kind}"
    if op not in OPS:
        raise UsageError(
            f"{id!r} is no id: there is no op {op!r}; ids look like add-0123456789ab,"
            " add-refusal-0123456789ab, add-edges-0123456789ab, composite-gelu-0,"
            " weights-Q4_K-1, lifetime-walk-0123456789ab, model-gpt2-f32-logits-0123456789ab,"
            " regression-0123456789ab and program-SEED-NUMBER; ops of your own need --import MODULE"
        )
    return _among(id, _of_op(op))


def _composites(name: str) -> Iterator[Item]:
    return (CompositeCall(name, number) for number in range(len(CALLS.get(name, ()))))


def _of_op(name: str) -> Iterator[Item]:
    yield from cases_of(OPS[name])
    yield from sweeps_of(OPS[name])
    yield from refusals([OPS[name]])


def _among(id: str, items: Iterable[Item]) -> Item:
    ids = []
    for item in items:
        if item.id == id:
            return item
        ids.append(item.id)
    near = ", ".join(difflib.get_close_matches(id, ids, 3, 0.0)) or "none"
    raise UsageError(
        f"{id!r} is not in the corpus of this version of the suite (its content changed, or it is"
        f" mistyped; of {len(ids)} ids the nearest are: {near}); the report says which it is of"
    )
