"""The names that words of ``-k`` are usually taken from."""

from __future__ import annotations

from ptir.ops import OPS
from ptir.types import DTYPES
from ptir_testsuite.corpus.composites import CALLS
from ptir_testsuite.corpus.profiles import PROFILES
from ptir_testsuite.running.kinds.lifetime import KINDS

ROWS = ("sample", "refusal", "composite", "model", "lifetime", "regression", "program")
"""Kinds of rows, as their ids or origins say."""


def names() -> list[str]:
    """Ops, dtypes, profiles, composites and kinds of rows, each once."""
    return list(dict.fromkeys((*OPS, *DTYPES, *PROFILES, *CALLS, *KINDS, *ROWS)))
