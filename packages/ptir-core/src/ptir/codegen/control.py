"""Programs with control flow: straight-line parts are kernels, the host decides between them.

A block is cut at its ``cond`` and ``while`` instructions. What lies between becomes a program of
its own; a predicate is read back to the host, which counts as a host sync, not as a fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ptir.backend.contract import Backend, Device, Executable, Handle
from ptir.ir.program import Block, Instruction, Port, Program

CONTROL: Final = ("cond", "while")
Compile = Callable[[Program], Executable]


def has_control(block: Block) -> bool:
    """Whether the host must take part in running ``block``."""
    return any(instruction.op in CONTROL for instruction in block.instructions)


@dataclass(frozen=True)
class _Part:
    """A straight-line part or one control instruction: what it reads and what it defines."""

    reads: tuple[int, ...]
    defines: tuple[int, ...]
    programs: tuple[Executable, ...]
    op: str = ""


class ControlProgram(Executable):
    """A program whose parts run one after the other; inputs are never overwritten."""

    def __init__(
        self, program: Program, backend: Backend, device: Device, compile: Compile
    ) -> None:
        self.program = program
        self._backend, self._device, self._compile = backend, device, compile
        self._parts = tuple(self._cut(program.main))

    def _cut(self, block: Block) -> list[_Part]:
        """The parts of ``block``, in order."""
        parts: list[_Part] = []
        numbered = list(block.numbered())
        begin = 0
        for position, (results, instruction) in enumerate([*numbered, ((), None)]):
            if instruction is not None and instruction.op not in CONTROL:
                continue
            if begin < position:
                parts.append(self._straight(block, numbered, begin, position))
            if instruction is not None:
                regions = tuple(self._compile(_alone(region)) for region in instruction.regions)
                parts.append(_Part(instruction.operands, results, regions, instruction.op))
            begin = position + 1
        return parts

    def _straight(
        self,
        block: Block,
        numbered: Sequence[tuple[tuple[int, ...], Instruction]],
        begin: int,
        end: int,
    ) -> _Part:
        """The instructions from ``begin`` to ``end`` as a program of what they read and are for."""
        inside = [value for results, _ in numbered[begin:end] for value in results]
        read = {value for _, made in numbered[begin:end] for value in made.operands}
        reads = tuple(sorted(read - set(inside)))
        later = {value for _, made in numbered[end:] for value in made.operands}
        defines = tuple(v for v in inside if v in later or v in block.outputs)
        numbers = {value: number for number, value in enumerate((*reads, *inside))}
        instructions = tuple(
            replace(made, operands=tuple(numbers[v] for v in made.operands))
            for _, made in numbered[begin:end]
        )
        types = tuple(block.types[v] for v in reads)
        part = Block(types, instructions, tuple(numbers[v] for v in defines))
        return _Part(reads, defines, (self._compile(_alone(part)),))

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Run the parts; what is returned shares nothing with the inputs."""
        values: dict[int, Handle] = dict(enumerate(inputs))
        for part in self._parts:
            operands = [values[v] for v in part.reads]
            results = self._run(part, operands)
            values.update(zip(part.defines, results, strict=True))
        given: set[int] = {id(handle) for handle in inputs}
        outputs: list[Handle] = []
        for value in self.program.main.outputs:
            handle = values[value]
            if id(handle) in given:
                handle = self._backend.copy(handle, self._device)
            given.add(id(handle))
            outputs.append(handle)
        return tuple(outputs)

    def _run(self, part: _Part, operands: list[Handle]) -> Sequence[Handle]:
        if part.op == "cond":
            chosen = part.programs[0] if self._truth(operands[0]) else part.programs[1]
            return chosen.run(operands[1:])
        if part.op == "while":
            condition, body = part.programs
            while self._truth(condition.run(operands)[0]):
                operands = list(body.run(operands))
            return operands
        return part.programs[0].run(operands)

    def _truth(self, handle: Handle) -> bool:
        self._backend.stats(self._device).host_syncs += 1
        return bool(self._backend.download(handle, self._device))


def _alone(block: Block) -> Program:
    ports = tuple(Port(f"x{number}") for number in range(len(block.inputs)))
    return Program(block, ports)
