"""Control flow of level 1 backends, driven by the host: which region runs, how often, on what.

A scan's rows are sliced and its outputs stacked by the backend's own steps, so that nothing
leaves the device but the flags of cond and while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ptir.backend.checked import downloaded
from ptir.backend.contract import Device, Handle
from ptir.ir.attributes import Attributes
from ptir.ir.program import Instruction
from ptir.ops.loops import scan_order
from ptir.ops.record import OPS
from ptir.types import BOOL, TensorType

CONTROL: Final = ("cond", "while", "scan")
FLAG: Final = TensorType(BOOL, ())

Runner = Callable[..., Any]
Region = Callable[..., tuple[Handle, ...]]


def bind_control(
    backend: Any,
    device: Device,
    instruction: Instruction,
    types: Sequence[TensorType],
    regions: Sequence[Region],
) -> Runner:
    """A function of the operands' handles, of these types, that runs the instruction."""
    driver = Driver(backend, device, instruction, types, regions)
    run = {"cond": driver.cond, "while": driver.loop, "scan": driver.scan}[instruction.op]
    return (
        (lambda *operands: run(operands)[0])
        if len(instruction.types) == 1
        else (lambda *operands: run(operands))
    )


class Driver:
    """One control flow instruction, its regions bound already."""

    def __init__(
        self,
        backend: Any,
        device: Device,
        instruction: Instruction,
        types: Sequence[TensorType],
        regions: Sequence[Region],
    ) -> None:
        self._backend = backend
        self._device = device
        self._attributes = instruction.attributes
        self._types = types
        self._results = instruction.types
        self._regions = regions

    def cond(self, operands: Sequence[Handle]) -> tuple[Handle, ...]:
        """The results of the region that the first operand chooses."""
        chosen = self._regions[0] if self._truth(operands[0]) else self._regions[1]
        return chosen(*operands[1:])

    def loop(self, operands: Sequence[Handle]) -> tuple[Handle, ...]:
        """The state when the condition no longer holds."""
        condition, body = self._regions
        state = tuple(operands)
        while self._truth(condition(*state)[0]):
            state = body(*state)
        return state

    def scan(self, operands: Sequence[Handle]) -> tuple[Handle, ...]:
        """The last carries and the stacked outputs."""
        count, length = self._attributes["carries"], self._attributes["length"]
        carry, sequences = tuple(operands[:count]), operands[count:]
        given: dict[int, tuple[Handle, ...]] = {}
        for number in scan_order(length, self._attributes["reverse"]):
            rows = map(self._row, sequences, self._types[count:], [number] * len(sequences))
            results = self._regions[0](*carry, *rows)
            carry = results[:count]
            if len(results) > count:  # a scan without outputs may be longer than any list
                given[number] = results[count:]
        rows_of = (given[number] for number in sorted(given))
        columns = zip(*rows_of, strict=True) if given else [()] * len(self._results[count:])
        return (*carry, *map(self._stack, columns, self._results[count:]))

    def _truth(self, handle: Handle) -> bool:
        self._backend.stats(self._device).host_syncs += 1
        return bool(downloaded(self._backend, handle, self._device, FLAG))

    def _row(self, sequence: Handle, type: TensorType, number: int) -> Handle:
        for step in row_steps(type, number):
            sequence = self._run(step, sequence)
        return sequence

    def _stack(self, rows: Sequence[Handle], type: TensorType) -> Handle:
        if not rows:
            import numpy as np

            return self._backend.upload(np.zeros(type.shape, type.dtype.numpy), self._device)
        widen, join = stack_steps(type)
        return self._run(join, *(self._run(widen, row) for row in rows))

    def _run(self, step: Instruction, *operands: Handle) -> Handle:
        return self._backend.prepare(step, self._device, frozenset())(*operands)


def handed_on(instruction: Instruction) -> int:
    """How many of the first results may be an operand's memory; what a scan stacks is new."""
    scanned = instruction.op == "scan"
    return int(instruction.attributes["carries"]) if scanned else len(instruction.types)


def row_steps(type: TensorType, number: int) -> tuple[Instruction, Instruction]:
    """How one row of a sequence of ``type`` is read: a slice, then a reshape."""
    rest = type.shape[1:]
    starts, limits = (number, *(0 for _ in rest)), (number + 1, *rest)
    part, row = type.with_shape((1, *rest)), type.with_shape(rest)
    return _step("slice", part, starts=starts, limits=limits), _step("reshape", row, shape=rest)


def stack_steps(type: TensorType) -> tuple[Instruction, Instruction]:
    """How rows become a tensor of ``type``: each reshaped, then all of them joined."""
    one = (1, *type.shape[1:])
    join = _step("concat", type, count=type.shape[0], axis=0)
    return _step("reshape", type.with_shape(one), shape=one), join


def helper_steps(
    instruction: Instruction, types: Sequence[TensorType]
) -> Iterator[tuple[Instruction, tuple[TensorType, ...]]]:
    """The steps that driving an instruction takes besides its regions, with operand types."""
    if instruction.op != "scan" or not instruction.attributes["length"]:
        return
    count = instruction.attributes["carries"]
    for type in types[count:]:
        read, shaped = row_steps(type, 0)
        yield from ((read, (type,)), (shaped, read.types))
    for type in instruction.types[count:]:
        widen, join = stack_steps(type)
        yield widen, (type.with_shape(type.shape[1:]),)
        yield join, widen.types * type.shape[0]


def _step(name: str, result: TensorType, count: int = 1, **attributes: Any) -> Instruction:
    bound = Attributes(OPS[name].bind(attributes))
    return Instruction(name, tuple(range(count)), bound, (result,))
