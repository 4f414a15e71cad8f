"""Programs with control flow: straight-line blocks become kernels, the host chooses among them.

A block is cut at its conds, whiles and scans; what lies between is compiled like any program. The
host reads the flag of a cond and of every iteration of a while (counted as ``host_syncs``); a scan
runs its region a known number of times and reads nothing. With ``check_indices`` a block is also
cut in front of every op that has indices to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ptir.backend.contract import Executable, Handle
from ptir.backend.control import CONTROL
from ptir.backend.cut import piece_of
from ptir.ir.graph import freeze, source
from ptir.ir.program import Block, Instruction, Program
from ptir.ops.record import OPS
from ptir.types import TensorType

Slots = list[Any]
Run = Callable[[Slots], None]
Called = Callable[..., Sequence[Handle]]
Loop = Callable[[Instruction, "Host"], Called]


def is_cut(instruction: Instruction, checked: bool) -> bool:
    """Whether a block is cut at an instruction."""
    return instruction.op in CONTROL or (checked and OPS[instruction.op].bounds is not None)


@dataclass(frozen=True)
class Host:
    """What the host side of control flow asks of the backend."""

    compile: Callable[[Program], Executable]
    """A straight-line program, compiled."""
    read: Callable[[Handle], Any]
    """The elements behind a handle; a host sync."""
    copy: Callable[[Handle], Handle]
    checked: bool


class HostProgram(Executable):
    """A program whose blocks are chosen by the host."""

    def __init__(self, program: Program, host: Host) -> None:
        self.program = program
        self._host = host
        self._block = HostBlock(program.main, host)

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Run the blocks; an output that is an input, or another output, is copied."""
        taken = {id(handle) for handle in inputs}
        results: list[Handle] = []
        for handle in self._block(*inputs):
            own = self._host.copy(handle) if id(handle) in taken else handle
            taken.add(id(own))
            results.append(own)
        return tuple(results)


class HostBlock:
    """A block as straight-line pieces and control flow; callable with its inputs' handles."""

    def __init__(self, block: Block, host: Host, loop: Loop | None = None) -> None:
        """``loop`` says how the block's own whiles are run (default: by their conditions)."""
        self._host, self._size, self._outputs = host, len(block.types), block.outputs
        self._loop = loop or _with_condition
        self._steps: list[tuple[Run, tuple[int, ...]]] = []
        steps = list(self._parts(block))
        last = {v: n for n, (_, used) in enumerate(steps) for v in used}
        for number, (run, _) in enumerate(steps):
            dead = (v for v, n in last.items() if n == number and v not in block.outputs)
            self._steps.append((run, tuple(dead)))

    def __call__(self, *inputs: Handle) -> tuple[Handle, ...]:
        """The outputs' handles; values are dropped after their last reader."""
        slots: Slots = [None] * self._size
        slots[: len(inputs)] = inputs
        for run, dead in self._steps:
            run(slots)
            for value in dead:
                slots[value] = None
        return tuple(slots[v] for v in self._outputs)

    def _parts(self, block: Block) -> Iterator[tuple[Run, tuple[int, ...]]]:
        """Each step with the values that it reads or makes."""
        waiting: list[tuple[tuple[int, ...], Instruction]] = []
        for results, instruction in block.numbered():
            if is_cut(instruction, self._host.checked):
                if waiting:
                    yield self._straight(block, waiting)
                    waiting = []
                if instruction.op in CONTROL:
                    run = self._controlled(block, instruction)
                    yield _stored(run, instruction.operands, results)
                    continue
                yield self._check(block, instruction), instruction.operands
            waiting.append((results, instruction))
        if waiting:
            yield self._straight(block, waiting)

    def _controlled(self, block: Block, instruction: Instruction) -> Called:
        """What runs a cond, a while or a scan."""
        if instruction.op == "scan":
            types = [block.types[value] for value in instruction.operands]
            return _scan(types, instruction, self._host)
        return (_cond if instruction.op == "cond" else self._loop)(instruction, self._host)

    def _straight(
        self, block: Block, part: Sequence[tuple[tuple[int, ...], Instruction]]
    ) -> tuple[Run, tuple[int, ...]]:
        """Instructions without control flow, as a program of their own."""
        piece = piece_of(block, part)
        executable = self._host.compile(piece.program)
        return _stored(lambda *handles: executable.run(handles), piece.inputs, piece.outputs)

    def _check(self, block: Block, instruction: Instruction) -> Run:
        """A look at the indices of an instruction; raises ``DeviceError`` for one outside."""
        from ptir.ops.numerics import check_indices

        bounds = OPS[instruction.op].bounds
        assert bounds is not None
        types = [block.types[v] for v in instruction.operands]
        operand, greatest = bounds(types, instruction.attributes)
        value = instruction.operands[operand]

        def run(slots: Slots) -> None:
            check_indices(instruction.op, self._host.read(slots[value]), greatest)

        return run


# --- control flow: functions of the operands' handles that give the results' ---


def _cond(instruction: Instruction, host: Host) -> Called:
    """The region that the flag chooses."""
    on_true, on_false = (HostBlock(region, host) for region in instruction.regions)

    def cond(predicate: Handle, *operands: Handle) -> tuple[Handle, ...]:
        return (on_true if bool(host.read(predicate)) else on_false)(*operands)

    return cond


def _with_condition(instruction: Instruction, host: Host) -> Called:
    """A while that reads its flag before every iteration."""
    condition, body = (HostBlock(region, host) for region in instruction.regions)

    def loop(*state: Handle) -> tuple[Handle, ...]:
        while bool(host.read(condition(*state)[0])):
            state = body(*state)
        return state

    return loop


def _with_trip_count(count: int) -> Loop:
    """Whiles whose number of iterations is known: their condition is never computed."""

    def counted(instruction: Instruction, host: Host) -> Called:
        body = HostBlock(instruction.regions[1], host)

        def loop(*state: Handle) -> tuple[Handle, ...]:
            for _ in range(count):
                state = body(*state)
            return state

        return loop

    return counted


def _scan(types: Sequence[TensorType], instruction: Instruction, host: Host) -> Called:
    """The scan's decomposition: a while with an iteration for each row."""
    inputs = [source(type) for type in types]
    decomposition = OPS["scan"].decomposition
    assert decomposition is not None
    results = decomposition(*inputs, regions=instruction.regions, **instruction.attributes)
    frozen = freeze(list(results), inputs)
    return HostBlock(frozen, host, _with_trip_count(instruction.attributes["length"]))


def _stored(
    run: Called, operands: Sequence[int], results: Sequence[int]
) -> tuple[Run, tuple[int, ...]]:
    """``run`` on the operands' slots, its results put into theirs."""

    def step(slots: Slots) -> None:
        found = run(*(slots[v] for v in operands))
        for value, handle in zip(results, found, strict=True):
            slots[value] = handle

    return step, (*operands, *results)
