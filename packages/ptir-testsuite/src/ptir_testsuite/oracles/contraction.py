"""The oracle of dot_general: every product and every sum exactly, in integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir_testsuite.oracles.expected import Expected, from_outcomes
from ptir_testsuite.oracles.floats import Array, python_values
from ptir_testsuite.oracles.sums import accumulator, dot_of, from_totals
from ptir_testsuite.oracles.table import Given, oracle

Axes = tuple[int, ...]


@oracle("dot_general")
def _dot_general(given: Given) -> list[Expected]:
    (lhs, rhs), (result,) = given.arrays, given.results
    left = _vectors(lhs, given["lhs_batch"], given["lhs_contract"])
    right = _vectors(rhs, given["rhs_batch"], given["rhs_contract"])
    batch_rank = len(given["lhs_batch"])
    left_rank = lhs.ndim - len(given["lhs_contract"])
    dtype = given.types[0].dtype
    rows = {at: python_values(left[at], dtype) for at in np.ndindex(*left.shape[:-1])}
    columns = {at: python_values(right[at], dtype) for at in np.ndindex(*right.shape[:-1])}
    pairs = [
        (rows[at[:left_rank]], columns[(*at[:batch_rank], *at[left_rank:])])
        for at in np.ndindex(*result.shape)
    ]
    if not result.dtype.is_float:
        sums: list[Any] = [sum(a * b for a, b in zip(x, y, strict=True)) for x, y in pairs]
        return [from_outcomes(sums, result)]
    into = accumulator(result)
    return [from_totals([dot_of(x, y, into) for x, y in pairs], result)]


def _vectors(operand: Array, batch: Axes, contract: Axes) -> Array:
    """The operand as vectors of what is contracted: batch axes, free axes, one axis of terms."""
    free = [a for a in range(operand.ndim) if a not in batch and a not in contract]
    outer = [operand.shape[a] for a in (*batch, *free)]
    terms = 1
    for axis in contract:
        terms *= operand.shape[axis]
    return operand.transpose(*batch, *free, *contract).reshape(*outer, terms)
