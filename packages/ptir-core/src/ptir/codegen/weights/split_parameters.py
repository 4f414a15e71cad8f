"""Parameters above a device's largest allocation: kept in parts, and read as if they were whole.

The resolver replaces such a parameter by the concatenation of its parts, each a derived parameter;
a contraction with it becomes a contraction with each part. A part is derived by a program that only
slices the stored parameter, which stays on the host: the slices are uploaded, never the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ptir.backend.contract import Executable, Handle
from ptir.codegen.weights.computed_words import VECTORS
from ptir.ir.graph import Ref, freeze, inline, repeat, source
from ptir.ir.program import Instruction, Port, Program
from ptir.ops.record import op
from ptir.passes.ranges import sliced
from ptir.types import TensorType


@dataclass(frozen=True)
class Span:
    """Places ``first`` up to ``end`` along an axis of a matrix."""

    axis: int
    first: int
    end: int

    def of(self, value: Ref) -> Ref:
        """The part of a value."""
        return sliced(value, self.axis, self.first, self.end)


def spans(type: TensorType, axis: int, unit: int, largest: int) -> tuple[Span, ...]:
    """The fewest equal parts of at most ``largest`` bytes, in whole ``unit`` places of ``axis``.

    A single unit is taken even where it is larger.
    """
    size = type.shape[axis]
    each = max(1, largest // max(1, -(-type.nbytes // size) * unit))
    count = -(-size // (each * unit))
    step = -(-size // (count * unit)) * unit
    return tuple(Span(axis, n, min(n + step, size)) for n in range(0, size, step))


class SplitParameters:
    """The values that stand for whole parameters, and what they are made of."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], dict[Span, Ref]] = {}

    def whole(self, parts: dict[Span, Ref]) -> Ref:
        """The value that the parts make together."""
        (axis,) = {span.axis for span in parts}
        joined: Ref = op("concat")(*parts.values(), axis=axis)
        self._parts[joined.key] = parts
        return joined

    def products(self, instruction: Instruction, operands: tuple[Ref, ...]) -> list[Ref] | None:
        """A contraction with a weight in parts as contractions with each part, or None."""
        if instruction.op != "dot_general" or instruction.attributes["rhs_batch"]:
            return None
        lhs, rhs = operands
        contract = instruction.attributes["rhs_contract"]
        found = [span for span in self._spans(rhs) if span.axis not in contract]
        if not found or rhs.type.rank != 2 or len(contract) != 1:
            return None
        attributes = dict(instruction.attributes)
        products = [op("dot_general")(lhs, self._part(rhs, s), **attributes) for s in found]
        return [op("concat")(*products, axis=instruction.types[0].rank - 1)]

    def _spans(self, value: Ref) -> tuple[Span, ...]:
        """How a value is divided: as what it is computed from element by element."""
        if value.key in self._parts:
            return tuple(self._parts[value.key])
        if value.node.op in ("cast", "dequantize", VECTORS):
            return self._spans(value.node.operands[0])
        return ()

    def _part(self, value: Ref, span: Span) -> Ref:
        """A part of a value, computed from parts as far as that goes."""
        parts, node = self._parts.get(value.key), value.node
        if parts is not None and span in parts:
            return parts[span]
        same = all(operand.type.shape == value.type.shape for operand in node.operands)
        if node.op == VECTORS:  # of every part by the whole table
            codes, table, signs = node.operands
            operands = [self._part(codes, span), table, self._part(signs, span)]
        elif node.op == "dequantize" or (node.op in ("cast", "mul") and same):
            operands = [self._part(operand, span) for operand in node.operands]
        else:
            return span.of(value)
        found: Ref = op(node.op)(*operands, **dict(node.attributes))
        return found


# --- reading a stored parameter in parts ---


@dataclass(frozen=True)
class HostSlice:
    """A slice of an input that stays on the host."""

    input: int
    starts: tuple[int, ...]
    limits: tuple[int, ...]

    def of(self, array: Any) -> Any:
        """The slice of the whole array."""
        return array[tuple(map(slice, self.starts, self.limits))]


def with_host_slices(
    program: Program, largest: int
) -> tuple[Program, tuple[HostSlice | int, ...]] | None:
    """``program`` reading slices of its inputs above ``largest`` bytes instead of these.

    With it, what each of its inputs is: an input by number, or a piece. None where no input is
    too large, or one is read by anything but slices.
    """
    block = program.main
    large = {n for n, type in enumerate(program.inputs) if type.nbytes > largest}
    readers = [i for i in block.instructions if large & set(i.operands)]
    if not large or large & set(block.outputs) or not all(map(_is_slice, readers)):
        return None
    given: list[tuple[HostSlice | int, Ref]] = [
        (n, source(type)) for n, type in enumerate(program.inputs) if n not in large
    ]
    values = {n: value for n, value in given if isinstance(n, int)}
    kept = [values.get(n) or source(type) for n, type in enumerate(program.inputs)]

    def visit(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
        number = next((n for n in large if operands and operands[0] is kept[n]), None)
        if number is None:
            return repeat(instruction, operands)
        attributes = instruction.attributes
        piece = HostSlice(number, attributes["starts"], attributes["limits"])
        given.append((piece, source(instruction.types[0])))
        return [given[-1][1]]

    outputs = inline(block, kept, visit)
    made = freeze(outputs, [value for _, value in given])
    ports = tuple(Port(f"x{number}") for number in range(len(given)))
    return Program(made, ports, program.version), tuple(what for what, _ in given)


def _is_slice(instruction: Instruction) -> bool:
    strides = instruction.attributes["strides"] if instruction.op == "slice" else ()
    return instruction.op == "slice" and all(stride == 1 for stride in strides or ())


class HostSlicedProgram(Executable):
    """A program of which inputs stay on the host; their slices are uploaded for every run."""

    def __init__(
        self,
        program: Program,
        inner: Executable,
        whats: Sequence[HostSlice | int],
        upload: Callable[[Any], Handle],
    ) -> None:
        self.program = program
        self._inner, self._whats, self._upload = inner, tuple(whats), upload

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Upload the pieces and run on them."""
        return self._inner.run([*self._given(inputs)])

    def _given(self, inputs: Sequence[Handle]) -> Iterator[Handle]:
        for what in self._whats:
            yield (
                self._upload(what.of(inputs[what.input].host))
                if isinstance(what, HostSlice)
                else inputs[what]
            )
