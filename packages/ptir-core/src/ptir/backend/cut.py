"""Programs cut into pieces, each compiled by itself: what control flow and streaming share.

A program that is cut at its layers runs piece by piece, so that parameters come and go between
them, on backends that run a program only as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeAlias

from ptir.backend.contract import Executable, Handle, Options, Queue
from ptir.ir.program import Block, Instruction, Port, Program

Numbered: TypeAlias = tuple[tuple[int, ...], Instruction]
"""An instruction and the values that it makes."""
Compile: TypeAlias = Callable[[Program, Options], Executable]


@dataclass(frozen=True)
class Piece:
    """Some instructions of a block as a program, and the block's values that it takes and makes."""

    program: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def piece_of(block: Block, part: Sequence[Numbered], own: Collection[int] = ()) -> Piece:
    """``part`` of a block's instructions, in order, as a program of their own.

    It gives what the block does, and what other instructions read but for what pieces make their
    ``own``.
    """
    made = {v for results, _ in part for v in results}
    inside = {id(instruction) for _, instruction in part}
    read = [v for _, i in part for v in i.operands]
    inputs = tuple(dict.fromkeys(v for v in read if v not in made))
    wanted = set(block.outputs)
    for instruction in block.instructions:
        if id(instruction) not in inside:
            wanted.update(v for v in instruction.operands if v not in own)
    outputs = tuple(v for v in sorted(made) if v in wanted)
    numbers = {v: n for n, v in enumerate((*inputs, *(v for r, _ in part for v in r)))}
    instructions = tuple(
        replace(i, operands=tuple(numbers[v] for v in i.operands)) for _, i in part
    )
    types = tuple(block.types[v] for v in inputs)
    main = Block(types, instructions, tuple(numbers[v] for v in outputs))
    return Piece(Program(main, tuple(Port(f"v{v}") for v in inputs)), inputs, outputs)


class CutProgram(Executable):
    """A program as one piece for each layer, and for what lies between them."""

    def __init__(
        self,
        program: Program,
        options: Options,
        compile: Compile,
        copy: Callable[[Handle], Handle],
    ) -> None:
        """``compile`` makes pieces; ``copy`` makes of an input an output of its own."""
        self.program, self._copy = program, copy
        block = program.main
        constants = {r[0]: (r, i) for r, i in block.numbered() if i.op == "constant"}
        cut = _layers(block, constants, options.apart)
        self._pieces = [piece_of(block, part, constants) for part in cut]
        last = {
            v: n for n, piece in enumerate(self._pieces) for v in (*piece.inputs, *piece.outputs)
        }
        kept = {*block.outputs, *(set(range(len(block.inputs))) - options.donated)}
        self._dead = [
            tuple(v for v, n in last.items() if n == number and v not in block.outputs)
            for number in range(len(self._pieces))
        ]
        self._compiled = [
            compile(piece.program, _options(piece, options, {*self._dead[n]} - kept))
            for n, piece in enumerate(self._pieces)
        ]

    @property
    def workspace_bytes(self) -> int:
        """Bytes that the pieces hold."""
        return sum(made.workspace_bytes for made in self._compiled)

    def reads(self) -> Sequence[Collection[int]]:
        """The inputs that each piece takes, and those that are outputs."""
        count = len(self.program.inputs)
        lists = [*(piece.inputs for piece in self._pieces), self.program.main.outputs]
        return [{v for v in values if v < count} for values in lists]

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """All pieces, one after the other."""
        return self.run_staged(inputs, lambda queue: queue(0, len(self._pieces) + 1, {}))

    def run_staged(
        self, inputs: Sequence[Handle | None], drive: Callable[[Queue], None]
    ) -> tuple[Handle, ...]:
        """The pieces in order, some at a time."""
        slots: list[Any] = [*inputs, *[None] * (len(self.program.main.types) - len(inputs))]
        results: list[Handle] = []

        def queue(first: int, end: int, handles: Mapping[int, Handle]) -> None:
            for number, handle in handles.items():
                slots[number] = handle
            for number in range(first, min(end, len(self._pieces))):
                self._run(number, slots)
            if end > len(self._pieces):
                results[:] = self._results(slots)
            for number in handles:
                slots[number] = None

        drive(queue)
        return tuple(results)

    def _run(self, number: int, slots: list[Any]) -> None:
        piece = self._pieces[number]
        found = self._compiled[number].run([slots[v] for v in piece.inputs])
        for value, handle in zip(piece.outputs, found, strict=True):
            slots[value] = handle
        for value in self._dead[number]:
            slots[value] = None

    def _results(self, slots: Sequence[Any]) -> Iterator[Handle]:
        """The outputs: copies of what is an input or another output."""
        taken = set(range(len(self.program.inputs)))
        for value in self.program.main.outputs:
            yield self._copy(slots[value]) if value in taken else slots[value]
            taken.add(value)


def _options(piece: Piece, options: Options, given: Collection[int]) -> Options:
    """How a piece is compiled: what dies in it is its own, unless it goes by two numbers."""
    number = {v: n for n, v in enumerate(piece.inputs)}
    groups = [tuple(number[v] for v in group if v in number) for group in options.aliases]
    aliases = tuple(group for group in groups if len(group) > 1)
    shared = {v for group in options.aliases for v in group}
    donated = frozenset(number[v] for v in given if v in number and v not in shared)
    kept = ({number[v] for v in group if v in number} for group in options.apart)
    apart = tuple(frozenset(group) for group in kept if group)
    return Options(donated, aliases, options.check_indices, apart=apart)


def _layers(
    block: Block, constants: Mapping[int, Numbered], apart: Sequence[frozenset[int]]
) -> Iterator[list[Numbered]]:
    """Runs of instructions of one layer, or of one group of inputs that are to be read apart.

    Each has the constants that it reads.
    """
    group = {value: number for number, values in enumerate(apart) for value in values}

    def key(one: Numbered) -> tuple[str, int | None]:
        read = (group[v] for v in one[1].operands if v in group)
        return one[1].location.layer, next(read, None)

    rest = ((r, i) for r, i in block.numbered() if i.op != "constant")
    pieces = [list(part) for _, part in groupby(rest, key=key)]
    for number, part in enumerate(pieces or [[]]):
        read = (v for _, i in part for v in i.operands)
        given = block.outputs if number == 0 else ()
        yield [*(constants[v] for v in dict.fromkeys((*read, *given)) if v in constants), *part]
