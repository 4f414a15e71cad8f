"""Which delta rules are taken whole. It is asked for every program, so it imports no writer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ptir.backend.contract import OpQuery
from ptir.codegen.schedules.family import whole
from ptir.types import F32

RULE: Final = "gated_delta_rule"
MOST: Final = 1024
"""Longest keys: a workgroup keeps those of a chunk to itself."""

_floats: Final = whole(F32)


def refusal(query: OpQuery, dots: Collection[str]) -> str | None:
    """Why a gated delta rule is left to its lowering, or None."""
    size = query.operands[0].shape[3]
    if size > MOST:
        return f"{query.name}: keys of {size} are longer than {MOST}"
    return _floats(query, dots)
