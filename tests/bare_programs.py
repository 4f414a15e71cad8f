"""Programs without composites, and what makes two programs equal but for names and order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptir.ir.attributes import Attributes
from ptir.ir.graph import expand, inline, rebuild, source
from ptir.ir.program import Block, Program


def bare(program: Program) -> Program:
    """``program`` with every composite replaced by its lowering, lowerings of those too."""
    return replace(program, main=bare_block(program.main))


def bare_block(block: Block) -> Block:
    while any(i.op == "composite" for i in block.instructions):
        block = rebuild(block, lambda i, given: expand(i, given) if i.op == "composite" else None)
    return block


def form(program: Program) -> list[Any]:
    """The instructions in the order in which outputs need them, without names.

    Numbers in attributes are rounded to f32: that is what a program computes with.
    """
    inputs = [source(t) for t in program.main.inputs]
    outputs = inline(program.main, inputs)
    names = {i.node.serial: p.name for i, p in zip(inputs, program.ports, strict=True)}
    number: dict[int, int] = {}
    lines: list[Any] = []
    pending = [(ref.node, False) for ref in reversed(outputs)]
    while pending:
        node, ready = pending.pop()
        if node.serial in number:
            continue
        if not ready and not node.is_source:
            pending.append((node, True))
            pending += [(ref.node, False) for ref in reversed(node.operands)]
            continue
        number[node.serial] = len(number)
        if node.is_source:
            lines.append(names[node.serial])
            continue
        operands = [(number[ref.node.serial], ref.index) for ref in node.operands]
        lines.append((node.op, operands, _rounded(node.attributes), node.types))
    return lines


def _rounded(attributes: Attributes) -> str:
    given = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in attributes.items()}
    return Attributes(given).text
