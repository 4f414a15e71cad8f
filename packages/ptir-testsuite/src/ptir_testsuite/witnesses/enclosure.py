"""Interval evaluation: between which bounds may each result of a program lie?

Every op is widened by its accuracy class, so the bounds enclose whatever a conforming backend may
answer. A value that no rounding touched is a *point*: its bounds are one array, in its own dtype.
All other floats are bounded by float64 arrays. What a rule cannot bound raises ``Unbounded``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptir.ir.program import Block, Instruction
from ptir.ops import numerics
from ptir.ops.record import OPS
from ptir_testsuite.oracles.accuracy import Kind
from ptir_testsuite.witnesses.rules import RULES
from ptir_testsuite.witnesses.spans import Array, Rounding, Span, Unbounded, point, stacked

Regions = Sequence[Callable[..., list[Span]]]


class Enclosure:
    """One evaluation; ``roundings`` lists the class of every op that could round."""

    def __init__(self) -> None:
        self.roundings: list[Kind] = []

    @property
    def decided(self) -> bool:
        """Whether nothing is left open: at most one op rounds, and that one correctly."""
        return self.roundings in ([], ["rounded"])

    def block(self, block: Block, operands: Sequence[Span]) -> list[Span]:
        """The bounds of the outputs of ``block`` from those of its inputs."""
        values = list(operands)
        for instruction in block.instructions:
            values.extend(self.step(instruction, [values[v] for v in instruction.operands]))
        return [values[v] for v in block.outputs]

    def step(self, instruction: Instruction, operands: list[Span]) -> list[Span]:
        """The bounds of one instruction's results."""
        name = instruction.op
        control = CONTROL.get(name)
        if control is not None:
            regions = [lambda *a, r=region: self.block(r, a) for region in instruction.regions]
            return control(instruction, operands, regions)
        rounding = Rounding.of(instruction, operands)
        certain = rounding is None or rounding.bound.kind == "rounded"
        native = reference(instruction, operands) if certain else None
        if native is not None and rounding is None and all(o.exact for o in operands):
            return [point(array) for array in native]
        found = self.bounds(instruction, operands)
        if rounding is not None:
            found = [self.rounded(r, rounding, native, operands) for r in found]
        if native is None:
            return found
        return [_known(span, array) for span, array in zip(found, native, strict=True)]

    def rounded(
        self,
        span: Span,
        rounding: Rounding,
        native: tuple[Array, ...] | None,
        operands: Sequence[Span],
    ) -> Span:
        """``span`` moved apart; on exact operands only where rounding does anything."""
        apart = rounding.widen(span)
        if native is None or not all(operand.exact for operand in operands):
            self.roundings.append(rounding.bound.kind)
            return apart
        wide = native[0].astype(np.float64)
        kept = ((span.low == wide) & (span.high == wide)) | np.isnan(wide)
        if np.all(kept):
            return point(native[0])
        self.roundings.append(rounding.bound.kind)
        return Span(np.where(kept, wide, apart.low), np.where(kept, wide, apart.high))

    def bounds(self, instruction: Instruction, operands: list[Span]) -> list[Span]:
        """What the rule of an op says, before anything is rounded."""
        rule = RULES.get(instruction.op)
        if rule is None:
            raise Unbounded(f"{instruction.op} has no rule for operands known only by bounds")
        with np.errstate(all="ignore"):
            found = rule(instruction, operands)
        return found if isinstance(found, list) else [found]


def reference(instruction: Instruction, operands: Sequence[Span]) -> tuple[Array, ...] | None:
    """What the op record says of operands that can only be one thing; None if some cannot."""
    arrays = [operand.native for operand in operands if operand.native is not None]
    if len(arrays) < len(operands):
        return None
    with np.errstate(all="ignore"):
        result = OPS[instruction.op].reference(numerics, *arrays, **instruction.attributes)
    return result if isinstance(result, tuple) else (result,)


def _known(span: Span, native: Array) -> Span:
    """``span`` with its only right result; whole numbers and flags are that result."""
    if span.exact or native.dtype.kind in "biu":
        return point(native)
    return Span(span.low, span.high, span.spread, native)


def enclose(block: Block, inputs: Sequence[Array]) -> tuple[list[Span], bool]:
    """The bounds of each output of ``block`` on exact inputs, and whether they leave one result.

    Raises ``Unbounded`` where an op has no rule for operands that are not exact.
    """
    evaluation = Enclosure()
    return evaluation.block(block, [point(array) for array in inputs]), evaluation.decided


def evaluate(block: Block, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of ``block`` as the op records define them, in the program's own dtypes."""
    values = list(inputs)
    for instruction in block.instructions:
        arrays = [values[v] for v in instruction.operands]
        more: dict[str, Any] = {}
        if instruction.regions:
            more["regions"] = [
                lambda *a, r=region: evaluate(r, a) for region in instruction.regions
            ]
        result = OPS[instruction.op].reference(numerics, *arrays, **instruction.attributes, **more)
        values.extend(result if isinstance(result, tuple | list) else (result,))
    return [np.asarray(values[v]) for v in block.outputs]


# --- control ---


def _composite(instruction: Instruction, operands: list[Span], regions: Regions) -> list[Span]:
    return regions[0](*operands)


def _cond(instruction: Instruction, operands: list[Span], regions: Regions) -> list[Span]:
    predicate, *rest = operands
    then, otherwise = regions
    if predicate.native is not None:
        return then(*rest) if bool(predicate.native) else otherwise(*rest)
    return [a.union(b) for a, b in zip(then(*rest), otherwise(*rest), strict=True)]


def _while(instruction: Instruction, operands: list[Span], regions: Regions) -> list[Span]:
    condition, body = regions
    state = operands
    while True:
        go = condition(*state)[0]
        if go.native is None:
            raise Unbounded("while: whether to go on depends on a rounded value")
        if not bool(go.native):
            return state
        state = body(*state)


def _scan(instruction: Instruction, operands: list[Span], regions: Regions) -> list[Span]:
    carries, length = instruction.attributes["carries"], instruction.attributes["length"]
    state, sequences = operands[:carries], operands[carries:]
    order = range(length)
    rows: dict[int, list[Span]] = {}
    for at in reversed(order) if instruction.attributes["reverse"] else order:
        found = regions[0](*state, *(sequence.row(at) for sequence in sequences))
        state, rows[at] = found[:carries], found[carries:]
    types = instruction.types[carries:]
    return [*state, *(stacked([rows[at][i] for at in order], t) for i, t in enumerate(types))]


CONTROL: dict[str, Callable[[Instruction, list[Span], Regions], list[Span]]] = {
    "composite": _composite,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
