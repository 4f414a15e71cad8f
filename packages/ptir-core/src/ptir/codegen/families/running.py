"""The running family: folds of everything up to each element of a line.

Serial schedule: an item owns whole lines, a vector of neighbouring ones at a time where the axis
is not the last; along a line the fold goes on from element to element.
"""

from __future__ import annotations

import math

from ptir.codegen.elementwise import rounded
from ptir.codegen.expr import Var, constant
from ptir.codegen.families.rows import COMBINE, identity
from ptir.codegen.graph import Graph
from ptir.codegen.index import Axis, Index, axis, digits
from ptir.codegen.kernel import Family, Group, Kernel, Site, finished
from ptir.codegen.writer import Writer


def match(graph: Graph, position: int) -> Group | None:
    """Every cumulative fold."""
    made = graph.block.instructions[position]
    if made.op != "cumulative":
        return None
    return Group("running", frozenset((position,)), made.operands, graph.results[position])


def write(group: Group, site: Site) -> Kernel:
    """A loop over lines, or over vectors of neighbouring lines, inside it one along the line."""
    (position,) = group.members
    made = site.graph.block.instructions[position]
    shape, along = made.types[0].shape, made.attributes["axis"]
    inner, writer = math.prod(shape[along + 1 :]), site.writer()
    lines, lanes = math.prod(shape) // shape[along], site.dialect.lanes
    whole = inner % lanes == 0  # a vector of lines must not cross into the next block
    pieces = lines // lanes if whole else lines
    items = site.items(pieces, math.prod(shape) * 4)
    writer.share(pieces, items)
    with writer.loop(Axis("p", pieces), "first", "last"):
        if whole:
            with writer.lanes(Axis("lane", lanes)):
                _line(group, site, writer, axis("p", pieces) * lanes + axis("lane", lanes))
        else:
            _line(group, site, writer, axis("p", pieces))
    return finished(group, writer, items)


def _line(group: Group, site: Site, writer: Writer, line: Index) -> None:
    """Fold along one line, or one per lane, and store every step."""
    (position,) = group.members
    made = site.graph.block.instructions[position]
    type, along, kind = made.types[0], made.attributes["axis"], made.attributes["kind"]
    size, inner = type.shape[along], math.prod(type.shape[along + 1 :])
    dtype, wide, name = type.dtype, writer.lane is not None, writer.name("acc")
    start = identity(kind, dtype)
    if kind == "sum" and dtype.is_float:
        start = constant(dtype, -0.0)  # so that a first -0 stays
    spelled = writer.wide if wide else writer.scalar
    writer.line(f"{writer.type(dtype, wide)} {name} = {spelled(start)};")
    base = (line // inner) * (size * inner) + line % inner
    with writer.loop(Axis("j", size), "0", str(size)):
        flat = base + axis("j", size) * inner
        element = site.builder().at(made.operands[0], digits(flat, type.shape))
        held = Var(dtype, name, wide)
        writer.line(f"{name} = {spelled(COMBINE[kind](dtype, held, element))};")
        # a new name each turn: variables of expressions never change
        total = Var(dtype, writer.let(dtype, wide, name), wide)
        writer.store(group.exits[0], dtype, flat, rounded(dtype, total))


FAMILY = Family("running", match, write)
