"""The experts family: rows of activations times the packed weights of the experts of each.

The weights of all experts are one matrix in panels, those of an expert a run of them: where a
contraction of the family linear reads all panels, this one reads the runs that are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.families.linear.match import rows_in_memory
from ptir.codegen.families.linear.parts import Linear
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.fusion.renumber import Value
from ptir.codegen.schedules.epilogue import epilogue
from ptir.codegen.schedules.kernel import Fusion
from ptir.codegen.weights.experts import DENSE, WORDS
from ptir.codegen.weights.match import quantized_experts
from ptir.codegen.weights.panels import LANES, panels_of


@dataclass(frozen=True)
class ExpertLinear(Linear):
    """A contraction whose weights are those of ``experts``, and the value of the ``chosen``."""

    chosen: Value = -1
    experts: int = 1
    pairs: int = 1
    """Rows of the result: a token and one of its experts."""
    shared: int = 1
    """Pairs that have a row of activations in common."""

    @property
    def outputs(self) -> int:
        """Outputs of an expert."""
        return self.panels.outputs // self.experts

    @property
    def count(self) -> int:
        """Panels of an expert."""
        return self.outputs // LANES

    @property
    def own(self) -> frozenset[int]:
        """What the contraction itself reads."""
        return super().own | {self.chosen}


def match(graph: Graph, position: int) -> Fusion | None:
    """The fusion of a product with chosen weights and its epilogue."""
    linear = _linear(graph, position)
    if linear is None:
        return None
    behind = epilogue(graph, position, _places(linear))
    reads = tuple(sorted(behind.inputs | linear.own))
    exact = (linear.packed, linear.chosen)
    return Fusion("experts", behind.instructions, reads, (behind.output,), linear, exact)


def _linear(graph: Graph, position: int) -> ExpertLinear | None:
    made = graph.block.instructions[position]
    lhs, chosen = made.operands[0], made.operands[-1]
    rows, pairs = math.prod(graph.type(lhs).shape[:-1]), graph.type(chosen).size
    how = {"chosen": chosen, "experts": made.attributes["experts"]}
    how |= {"pairs": pairs, "shared": pairs // rows}
    if made.name == DENSE:
        unpack = graph.instruction(made.operands[1])
        assert unpack is not None, "weights are packed (``settled``)"
        packed = unpack.operands[0]
        panels = panels_of(graph.type(packed), unpack.attributes)
        return ExpertLinear(position, lhs, packed, panels, rows, **how)
    weight = quantized_experts(graph, made)
    assert made.name == WORDS
    if weight is None:
        return None
    return ExpertLinear(position, lhs, weight.words, weight.panels, rows, quantized=weight, **how)


def _places(linear: ExpertLinear) -> list[Index]:
    """Where the kernel holds results: a panel's outputs for a pair."""
    vector = axis("p", linear.count) * LANES + axis("lane", LANES)
    return [axis("m", linear.pairs) * linear.outputs + vector]


def materialized(graph: Graph, fusion: Fusion, made: frozenset[int]) -> Collection[int]:
    """Activations: a row lies in memory in one piece."""
    return (rows_in_memory(graph, fusion.detail, made),)
