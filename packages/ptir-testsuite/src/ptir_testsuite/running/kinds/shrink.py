"""Making a failing program small: fewer outputs, values that become inputs, plainer inputs.

Whether a smaller one still fails is for the caller to say, who runs all candidates of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ptir.errors import PtirError
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops import OPS
from ptir.ops.verify import verify
from ptir_testsuite.corpus.stored import Stored
from ptir_testsuite.oracles.floats import Array

ROUNDS: Final = 40

Failing = Callable[[Sequence[Stored]], "Stored | None"]
"""The first of some programs that still fails in the same way, or None."""


def shrunk(program: Program, arrays: Sequence[Array], failing: Failing, note: str) -> Stored:
    """The smallest program found that still fails."""
    best = Stored.of(program, arrays, note)
    for _ in range(ROUNDS):
        smaller = [c for c in _candidates(best, note) if _size(c) < _size(best)]
        found = failing(sorted(smaller, key=_size)) if smaller else None
        if found is None:
            return best
        best = found
    return best


def _size(found: Stored) -> tuple[int, int, int, int]:
    """What counts: instructions, outputs, inputs, and bytes that are not zero."""
    main = found.program.main
    bytes_set = sum(sum(b != 0 for b in literal.data) for literal in found.inputs)
    return len(main.instructions), len(main.outputs), len(main.inputs), bytes_set


def _candidates(found: Stored, note: str) -> Iterator[Stored]:
    main = found.program.main
    arrays = [literal.numpy() for literal in found.inputs]
    for output in dict.fromkeys(main.outputs):
        yield from _valid(*needed(replace(main, outputs=(output,)), arrays), note)
    values = _values(main, arrays)
    for position, (numbers, instruction) in enumerate(main.numbered()):
        if len(main.instructions) > 1 and all(v in values for v in numbers):
            cut = _without(main, position, numbers, instruction)
            given = [*arrays, *(values[v] for v in numbers)]
            yield from _valid(*needed(cut, given), note)
        if instruction.op not in ("while",):
            alone = replace(main, outputs=numbers)
            yield from _valid(*needed(alone, arrays), note)
    for place, array in enumerate(arrays):
        for plain in _plainer(array):
            changed = [*arrays[:place], plain, *arrays[place + 1 :]]
            yield from _valid(main, changed, note)


def _plainer(array: Array) -> Iterator[Array]:
    yield np.zeros_like(array)
    flat = array.reshape(-1)
    half = flat.copy()
    half[flat.size // 2 :] = 0
    yield half.reshape(array.shape)
    half = flat.copy()
    half[: flat.size // 2] = 0
    yield half.reshape(array.shape)


def _valid(main: Block, arrays: Sequence[Array], note: str) -> Iterator[Stored]:
    ports = tuple(Port(f"x{i}") for i in range(len(main.inputs)))
    program = Program(main, ports)
    try:
        verify(program)
    except PtirError:
        return
    yield Stored.of(program, arrays, note)


def _values(main: Block, arrays: Sequence[Array]) -> dict[int, Array]:
    """What the references of the op records give for every value; without those behind regions."""
    from ptir.ops import numerics

    found: dict[int, Any] = dict(enumerate(arrays))
    for numbers, instruction in main.numbered():
        if instruction.regions or any(v not in found for v in instruction.operands):
            continue
        operands = [found[v] for v in instruction.operands]
        with np.errstate(all="ignore"):
            given = OPS[instruction.op].reference(numerics, *operands, **instruction.attributes)
        results = given if isinstance(given, tuple) else (np.asarray(given),)
        found.update(zip(numbers, results, strict=True))
    return found


def _without(main: Block, position: int, numbers: Sequence[int], instruction: Instruction) -> Block:
    """The block with an instruction's results as further inputs."""
    count, more = len(main.inputs), len(numbers)
    number = {v: v for v in range(count)}
    number |= {v: count + n for n, v in enumerate(numbers)}
    rest = [v for v in range(count, len(main.types)) if v not in number]
    number |= {v: count + more + n for n, v in enumerate(rest)}
    kept = [i for n, i in enumerate(main.instructions) if n != position]
    return Block(
        (*main.inputs, *instruction.types),
        tuple(replace(i, operands=tuple(number[v] for v in i.operands)) for i in kept),
        tuple(number[v] for v in main.outputs),
    )


def needed(main: Block, arrays: Sequence[Array]) -> tuple[Block, list[Array]]:
    """The block and its inputs without what its outputs do not need."""
    used = set(main.outputs)
    numbered = list(main.numbered())
    for numbers, instruction in reversed(numbered):
        if used & set(numbers):
            used |= set(instruction.operands)
    kept = [(numbers, i) for numbers, i in numbered if used & set(numbers)]
    inputs = [v for v in range(len(main.inputs)) if v in used]
    order = [*inputs, *(v for numbers, _ in kept for v in numbers)]
    number = {v: n for n, v in enumerate(order)}
    instructions = tuple(replace(i, operands=tuple(number[v] for v in i.operands)) for _, i in kept)
    outputs = tuple(number[v] for v in main.outputs)
    block = Block(tuple(main.inputs[v] for v in inputs), instructions, outputs)
    return block, [arrays[v] for v in inputs]
