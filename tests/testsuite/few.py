"""What is derived of the records of a few ops, in the place of all."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from ptir.ops import OPS
from ptir_testsuite.corpus.derivation import corpus
from ptir_testsuite.corpus.sweeps import sweeps
from ptir_testsuite.running.kinds.refusals import refusals

FEW: Final = (
    "abs",
    "add",
    "arg_min",
    "composite",
    "dot_general",
    "maximum",
    "mul",
    "reshape",
    "rsqrt",
    "select",
)


@cache
def derived_of_few_ops(_: object) -> tuple[Any, ...]:
    """Cases, sweeps and refusals, as ``items._derived`` gives them of all ops."""
    ops = [OPS[name] for name in FEW]
    return (*corpus(ops), *sweeps(ops), *refusals(ops))
