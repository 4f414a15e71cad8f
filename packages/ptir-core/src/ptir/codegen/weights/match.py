"""Which values of a program are a quantized weight: words in panels, with their scales and biases.

What comes in: a graph and the instruction that a product reads. What goes out: a ``Quantized``, or
None where kernels cannot read its words whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ptir.codegen.fusion.graph import Graph, splat
from ptir.codegen.weights.computed_words import computed_words
from ptir.codegen.weights.panel_views import panels_of_slices
from ptir.codegen.weights.panels import Panels
from ptir.codegen.weights.quantized import Quantized
from ptir.ir.program import Instruction
from ptir.types import F32
from ptir.weights import WeightFormat, affine
from ptir.weights.record import PANELS
from ptir.weights.words import WORD, layout


def quantized_weight(graph: Graph, made: Instruction | None, contract: int) -> Quantized | None:
    """The packed weight that a ``dequantize`` stands for, or None."""
    if made is None or made.op != "dequantize" or made.types[0].dtype != F32:
        return None
    found = panels_of_words(graph, made.operands[0])
    if found is None:
        return None
    bits, group = made.attributes["bits"], made.attributes["group"]
    same = made.attributes["axis"] == contract == (1 if found[1].layout == "oi" else 0)
    weight = _of_words(graph, found, made.operands, bits, group) if same else None
    return weight and replace(weight, table=made.attributes["table"])


def quantized_experts(graph: Graph, product: Instruction) -> Quantized | None:
    """The packed weights of experts that a product with the chosen ones reads, or None."""
    found = panels_of_words(graph, product.operands[1])
    if found is None or found[1].runs or found[1].layout != "oi":
        return None
    bits, group = product.attributes["bits"], product.attributes["group"]
    weight = _of_words(graph, found, product.operands[1:4], bits, group)
    table: Any = product.attributes.get("table")
    return weight and replace(weight, table=table)


def quantized_operands(graph: Graph, product: Instruction) -> Quantized | None:
    """The packed weight of a product of bytes, or None."""
    found = panels_of_words(graph, product.operands[3])
    if found is None or found[1].stride or found[1].runs:
        return None
    bits, group = product.attributes["bits"], product.attributes["group"]
    weight = _of_words(graph, found, product.operands[3:6], bits, group)
    table: Any = product.attributes.get("table")
    return weight and replace(weight, table=table)


def panels_of_words(graph: Graph, value: int) -> tuple[int, Panels] | None:
    """The words of a weight and their panels: unpacked ones, or what is computed of such."""
    found = panels_of_slices(graph, value)
    if found is not None:
        return found
    computed = computed_words(graph, value)
    return None if computed is None else (value, computed.panels)


def _of_words(
    graph: Graph, found: tuple[int, Panels], operands: Sequence[int], bits: int, group: int
) -> Quantized | None:
    """A weight of unpacked words, scales and biases, where its words can be read whole."""
    words, panels = found
    _, scale, bias = operands
    computed, unpack = computed_words(graph, words), graph.instruction(words)
    if group % layout(bits).chunk or not _is_whole(graph, panels, scale, bits, group):
        return None
    if panels.per != 1 or unpack is None:
        return None
    packed = unpack.operands[0] if computed is None else computed.packed[0]
    zero = _zero(graph, scale, bias)
    if panels.runs:  # scales lie like words, biases do not
        scales = panels_of_slices(graph, scale)
        if scales is None or scales[1].runs != panels.runs or zero is None:
            return None
        scale = scales[0]
    format = _format(bits, group, zero)
    return Quantized(packed, panels, scale, bias, format, computed=computed)


def _is_whole(graph: Graph, panels: Panels, scale: int, bits: int, group: int) -> bool:
    """Whether the words along the inputs are full."""
    groups = graph.type(scale).shape[1 if panels.layout == "oi" else 0]
    return groups * group * bits == panels.inputs * WORD


@cache
def _format(bits: int, group: int, zero: float | None) -> WeightFormat:
    """Words, scales and biases of a program: what ``dequantize`` says they are."""
    name = f"{bits} bits by {group}"
    if zero is None:
        return affine(name, bits, group, packed=PANELS)
    return affine(name, bits, group, bias=None, zero=-zero, packed=PANELS)


def _zero(graph: Graph, scale: int, bias: int) -> float | None:
    """The number that the scale is multiplied with to give the bias, where it is one."""
    made = graph.instruction(bias)
    if made is None or made.op != "mul":
        return None
    for one, other in (made.operands, made.operands[::-1]):
        factor = graph.instruction(graph.behind_views(other))
        number = None if factor is None else splat(factor)
        if one == scale and number is not None:
            return float(number)
    return None
