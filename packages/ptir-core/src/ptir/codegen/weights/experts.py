"""Products with the weights of experts: when they are taken whole."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ptir.backend.contract import OpQuery
from ptir.codegen.weights.panels import LANES, LEAST
from ptir.types import BF16, F16, F32
from ptir.weights.words import layout, per_word, words_for

DENSE: Final = "expert_linear"
WORDS: Final = "quantized_expert_linear"
STORED: Final = (F32, F16, BF16)
MOST: Final = 1 << 14
"""Pairs of a token and an expert whose numbers a workgroup keeps."""


def refusal(query: OpQuery, dots: Collection[str]) -> str | None:
    """Why a product with the weights of chosen experts is left to its lowering, or None."""
    x, weight, result = query.operands[0], query.operands[1], query.results[0]
    if not all(type.size for type in (*query.operands, result)):
        return f"{query.name} of nothing is left to its lowering"
    outputs, inputs = result.shape[2], x.shape[-1]
    if outputs % LANES or weight.shape[0] < LEAST:
        return f"{query.name}: outputs of {outputs} are no multiple of {LANES}"
    if query.operands[-1].size > MOST:
        return f"{query.name}: {query.operands[-1].size} rows are above {MOST}"
    return _unfit(query, inputs)


def _unfit(query: OpQuery, inputs: int) -> str | None:
    """Why the inputs of a weight do not lie in whole words, or None."""
    if query.name == DENSE:
        dtype = query.operands[1].dtype
        fits = dtype in STORED and inputs % per_word(dtype.bits) == 0
        return None if fits else f"{query.name}: the weight is not packed"
    bits, group = query.attributes["bits"], query.attributes["group"]
    whole = group % layout(bits).chunk == 0 and words_for(inputs, bits) * 32 == inputs * bits
    return None if whole else f"{query.name}: words of {bits} bits are not read whole"
