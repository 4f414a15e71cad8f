"""Panels behind slices: which part of a packed weight a contraction multiplies with.

A worker of several takes some panels of a weight, or some inputs of all panels. In its program the
weight is then slices of the unpacked whole, brought together; ``panels_of_slices`` says which
panels that are, so that a contraction reads them where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.weights.panels import LANES, Panels, panels_of
from ptir.ir.program import Instruction


def panels_of_slices(graph: Graph, value: int) -> tuple[int, Panels] | None:
    """The unpacked value that a weight is, or is cut out of, and its panels; else None.

    Parts begin at the first output and input: workers whose parts lie elsewhere get an address
    further on.
    """
    made = graph.instruction(value)
    if made is None:
        return None
    if _is_unpack(made):
        return value, panels_of(graph.type(made.operands[0]), made.attributes)
    parts = [value] if made.op == "slice" else made.operands if made.op == "concat" else ()
    slices = [graph.instruction(part) for part in parts]
    wholes = {one.operands[0] for one in slices if one is not None and one.op == "slice"}
    if None in slices or len(wholes) != 1 or any(o is None or o.op != "slice" for o in slices):
        return None
    (whole,) = wholes
    unpack = graph.instruction(whole)
    if unpack is None or not _is_unpack(unpack):
        return None
    panels = panels_of(graph.type(unpack.operands[0]), unpack.attributes)
    found = _cut(panels, [one for one in slices if one is not None])
    is_same = found is not None and found.plain == graph.type(value)
    return (whole, found) if found is not None and is_same else None


def _is_unpack(made: Instruction) -> bool:
    return made.op == "composite" and made.name == UNPACK


def _cut(panels: Panels, slices: Sequence[Instruction]) -> Panels | None:
    """The panels that slices make up, one after the other."""
    n = 0 if panels.layout == "oi" else 1
    boxes = [[(start, limit) for start, limit in zip(*_limits(one), strict=True)] for one in slices]
    if any(set(one.attributes["strides"] or (1,)) != {1} for one in slices):
        return None
    outputs, (inputs, *others) = [box[n] for box in boxes], [box[1 - n] for box in boxes]
    if inputs[0] or any(other != inputs for other in others) or inputs[1] % panels.per:
        return None
    if any(a % LANES for a, _ in outputs) or any(b % LANES for _, b in outputs[:-1]):
        return None
    size = sum(b - a for a, b in outputs)
    runs = tuple((a // LANES, -(-b // LANES)) for a, b in outputs)
    moved = runs if len(runs) > 1 or runs[0][0] else ()
    return replace(panels, outputs=size, inputs=inputs[1], stride=panels.inputs, runs=moved)


def _limits(one: Instruction) -> tuple[Sequence[int], Sequence[int]]:
    return one.attributes["starts"], one.attributes["limits"]
