"""Segments of a program: some of its instructions in a row, as a program of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ptir.ir.program import Block, Instruction, Port, Program


@dataclass(frozen=True)
class Segment:
    """The instructions from ``first`` up to ``last`` of a program, as a program.

    Its inputs are the values that they read and do not define, its outputs those that are read
    behind them or returned. ``reads`` and ``gives`` are the numbers that these have in the whole.
    """

    first: int
    last: int
    program: Program
    reads: tuple[int, ...]
    gives: tuple[int, ...]


def value_name(number: int) -> str:
    """What a segment's port for a value of the whole program is called."""
    return f"value_{number}"


def segment(
    program: Program, first: int, last: int, wanted: Sequence[int] | None = None
) -> Segment:
    """The instructions from ``first`` up to ``last``; ``wanted`` are other outputs than its own.

    Raises ``ValueError`` where there is no such instruction, or a wanted value is of none of them.
    """
    main = program.main
    if not 0 <= first < last <= len(main.instructions):
        raise ValueError(f"no instructions from {first} up to {last}")
    every = list(main.numbered())
    chosen = every[first:last]
    made = [number for numbers, _ in chosen for number in numbers]
    gives = tuple(_needed_behind(main, every[last:], made) if wanted is None else wanted)
    if not set(gives) <= {*made}:
        raise ValueError(f"values {gives} are not all made by instructions {first} up to {last}")
    inside = set(made)
    read = {v for _, one in chosen for v in one.operands if v not in inside}
    reads = _in_port_order(program, read)
    numbers = {value: place for place, value in enumerate((*reads, *made))}
    block = Block(
        tuple(main.types[v] for v in reads),
        tuple(_renumbered(one, numbers) for _, one in chosen),
        tuple(numbers[v] for v in gives),
    )
    ports = tuple(_port(program, value) for value in reads)
    return Segment(first, last, Program(block, ports, program.version), reads, gives)


def _needed_behind(
    main: Block, behind: Sequence[tuple[tuple[int, ...], Instruction]], made: Sequence[int]
) -> list[int]:
    """Those of the values ``made`` that instructions ``behind`` read, or that are returned."""
    read = {v for _, one in behind for v in one.operands} | set(main.outputs)
    return [value for value in made if value in read]


def _in_port_order(program: Program, values: set[int]) -> tuple[int, ...]:
    """Inputs and values of other instructions first, then parameters, as plans take them."""

    def order(value: int) -> tuple[bool, int]:
        known = value < len(program.ports)
        return known and program.ports[value].kind == "parameter", value

    return tuple(sorted(values, key=order))


def _port(program: Program, value: int) -> Port:
    return program.ports[value] if value < len(program.ports) else Port(value_name(value))


def _renumbered(instruction: Instruction, numbers: dict[int, int]) -> Instruction:
    return replace(instruction, operands=tuple(numbers[v] for v in instruction.operands))
