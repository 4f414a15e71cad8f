"""Contractions of rounded activations: when they are taken whole, and what becomes of the others.

A processor's dot instruction multiplies 32-bit words: four bytes, or two bf16, of a weight and of
the activations. Where there is one, the composites of ``ptir.ops.rounded`` are kernels; elsewhere
they are their lowerings, whose numbers are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from ptir.backend.contract import OpQuery
from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.weights.computed_words import COMPUTED
from ptir.codegen.weights.experts import DENSE, WORDS
from ptir.codegen.weights.panels import LANES, LEAST
from ptir.ir.graph import Ref, expand, rebuild, repeat
from ptir.ir.program import Block, Instruction, Program
from ptir.ops.rounded import BYTES, IMAGES, PAIRS, PER_WORD, ROUND, WINDOWS
from ptir.types import BF16, F32
from ptir.weights.words import BITS, WORD, per_word

DOTS: Final = {
    ROUND: "dot_bytes",
    BYTES: "dot_bytes",
    PAIRS: "dot_bf16",
    IMAGES: "dot_signed_bytes",
    WINDOWS: "dot_signed_bytes",
}
"""The scalar op that each composite needs as an instruction."""

WEIGHT: Final = {BYTES: 3, PAIRS: 1, WINDOWS: 1, DENSE: 1, WORDS: 1}
"""Which operand of a contraction is the packed weight."""

PER: Final = {BYTES: 1, PAIRS: 2, WINDOWS: PER_WORD, WORDS: 1}
"""Its elements in a 32-bit word of the panels, where the composite says that."""


LARGEST: Final = 1 << 15
"""Values of a group whose sum of products of bytes fits 32 bits."""


def refusal(query: OpQuery, dots: Collection[str]) -> str | None:
    """Why a contraction, or the rounding before it, is left to its lowering, or None."""
    name = str(query.name)
    if DOTS[name] not in dots:
        return f"{name}: the device has no {DOTS[name]} instruction"
    if not all(type.size for type in (*query.operands, *query.results)):
        return f"{name} of nothing is left to its lowering"
    if name == PAIRS:
        return _unfit_pairs(query)
    if name == WINDOWS:
        return _unfit_windows(query)
    if name == IMAGES:
        around = *query.attributes["low"], *query.attributes["high"]
        return f"{name}: the border is taken away" if min(around) < 0 else None
    group = query.attributes["group"]
    if group % LANES or group > LARGEST:
        return f"{name}: groups of {group} are no multiple of {LANES} up to {LARGEST}"
    if name == ROUND:
        return None if query.operands[0].dtype == F32 else f"{name} is taken whole for f32 only"
    if query.results[0].shape[-1] < LEAST or query.attributes["bits"] not in BITS:
        return f"{name}: the weight is not packed"
    return None


def _unfit_pairs(query: OpQuery) -> str | None:
    x, weight = query.operands
    if (x.dtype, weight.dtype) != (BF16, BF16):
        return f"{query.name} is taken whole for bf16 only"
    if x.shape[-1] % 2 or query.results[0].shape[-1] < LEAST:
        return f"{query.name}: the weight is not packed"
    return None


def _unfit_windows(query: OpQuery) -> str | None:
    if query.operands[0].shape[-1] % PER_WORD:
        return f"{query.name}: channels are no multiple of {PER_WORD}"
    if query.results[0].shape[-1] < LANES:
        return f"{query.name}: the weight is not packed"
    return None


def settled(program: Program) -> Program:
    """``program`` with those contractions inlined whose weights turned out not to be packed."""
    if not any(i.op == "composite" and i.name in WEIGHT for i in program.main.instructions):
        return program
    return replace(program, main=rebuild(program.main, _settled))


def _settled(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
    if instruction.op != "composite" or instruction.name not in WEIGHT:
        return repeat(instruction, operands)
    weight = operands[WEIGHT[instruction.name]]
    if _is_packed(weight, instruction, operands[0].type.shape[-1]):
        return repeat(instruction, operands)
    return expand(instruction, operands)


def _is_packed(weight: Ref, product: Instruction, inputs: int) -> bool:
    """Whether a weight is packed, its words along the inputs full."""
    made = weight.node
    is_computed = product.name in (BYTES, WORDS) and made.op in COMPUTED
    while is_computed and made.op in COMPUTED:  # words of bytes, as many as there are inputs for
        made = made.operands[0].node
    if made.op != "composite" or made.attributes["name"] != UNPACK:
        return False
    same = made.attributes["layout"] == product.attributes.get("layout", "oi")
    if is_computed:
        return same and made.operands[0].type.shape[3] == 1
    _, words, _, per = made.operands[0].type.shape
    is_whole = product.name != BYTES or words * WORD == inputs * product.attributes["bits"]
    wanted = PER.get(product.name, per_word(weight.type.dtype.bits))
    return same and is_whole and per == wanted


def is_rounding(made: Instruction | None) -> bool:
    """Whether an instruction rounds activations to bytes."""
    return made is not None and made.op == "composite" and made.name == ROUND


def readers_of(graph: Graph, position: int) -> set[int]:
    """The positions of the instructions that read any result of the one at ``position``."""
    return {p for value in graph.results[position] for p in graph.readers.get(value, ())}


def only_linear(block: Block, positions: Collection[int]) -> bool:
    """Whether all instructions at ``positions`` are contractions of bytes."""
    made = (block.instructions[p] for p in positions)
    return all(i.op == "composite" and i.name == BYTES for i in made)
