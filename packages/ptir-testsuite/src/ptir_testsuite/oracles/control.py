"""Oracles of ops with regions: a region is evaluated instruction by instruction by the oracles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptir.ir.program import Block, Instruction
from ptir.ops import OPS
from ptir_testsuite.oracles.expected import Expected, exactly
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.oracles.table import ORACLES, Given, oracle

LONGEST = 10_000


class NoOracleError(Exception):
    """A call that the oracles cannot judge, and why."""


def run_block(block: Block, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of a block; raises ``NoOracleError`` where one op's result is not exact."""
    values = list(arrays)
    for instruction in block.instructions:
        if instruction.op not in ORACLES:
            raise NoOracleError(f"a region holds {instruction.op}, which has no oracle")
        given = Given(
            instruction.op,
            tuple(values[v] for v in instruction.operands),
            tuple(block.types[v] for v in instruction.operands),
            instruction.attributes,
            instruction.types,
            instruction.regions,
        )
        _require_certain(instruction)
        values += [_certain(instruction.op, e) for e in ORACLES[instruction.op](given)]
    return [values[v] for v in block.outputs]


def _require_certain(instruction: Instruction) -> None:
    approximate = "ulp" in OPS[instruction.op].accuracy
    if approximate and any(t.dtype.is_float for t in instruction.types):
        raise NoOracleError(f"a region holds {instruction.op}, which may be off by an ULP")


def _certain(op: str, expected: Expected) -> Array:
    if expected.terms is not None and bool((expected.terms > 0).any()):
        raise NoOracleError(f"a region holds {op}, whose sums have no one result")
    return expected.values


def _all(arrays: Sequence[Array]) -> list[Expected]:
    return [exactly(a) for a in arrays]


@oracle("cond")
def _cond(given: Given) -> list[Expected]:
    chosen = given.regions[0] if bool(given.arrays[0]) else given.regions[1]
    return _all(run_block(chosen, given.arrays[1:]))


@oracle("while")
def _while(given: Given) -> list[Expected]:
    condition, body = given.regions
    state = list(given.arrays)
    for _ in range(LONGEST):
        if not bool(run_block(condition, state)[0]):
            return _all(state)
        state = run_block(body, state)
    raise NoOracleError(f"the loop does not end within {LONGEST} turns")


@oracle("scan")
def _scan(given: Given) -> list[Expected]:
    (region,), carried = given.regions, given["carries"]
    carries, sequences = list(given.arrays[:carried]), given.arrays[carried:]
    order = range(given["length"])
    rows: dict[int, list[Array]] = {}
    for row in reversed(order) if given["reverse"] else order:
        found = run_block(region, [*carries, *(s[row] for s in sequences)])
        carries, rows[row] = found[:carried], found[carried:]
    stacked = [
        np.array([rows[row][place] for row in order], type.dtype.numpy).reshape(type.shape)
        for place, type in enumerate(given.results[carried:])
    ]
    return _all([*carries, *stacked])


@oracle("composite")
def _composite(given: Given) -> list[Expected]:
    return _all(run_block(given.regions[0], given.arrays))
