"""Sweeps: programs of many calls of one op, over sizes, ranks, views, places of NaN and long sums.

A case is one call, and each costs a kernel of its own; what goes wrong beside the edges of a
schedule needs many. A sweep makes a program of them, which is built once and run several times, on
changed operands. Each row of ``NEEDS`` says which calls, and knows no op.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops import OPS
from ptir.ops.record import Op
from ptir.types import TensorType
from ptir_testsuite.corpus.derivation import judged
from ptir_testsuite.corpus.needs import NEEDS, Part, parts_of
from ptir_testsuite.corpus.programs import Drawn
from ptir_testsuite.corpus.values import Draws, draw
from ptir_testsuite.corpus.views import view_of
from ptir_testsuite.oracles.floats import Array

LETTERS: Final = ("A", "B")
"""The two sets of operands that sweeps and composites are run on."""


@dataclass(frozen=True)
class Sweep:
    """One program of an op, by what it is for and its number among those."""

    op: str
    need: str
    number: int

    def __reduce__(self) -> Any:
        return Sweep, (self.op, self.need, self.number)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The calls."""
        return parts_of(self.op, id(OPS[self.op]))[self.need][self.number]

    @cached_property
    def id(self) -> str:
        """The op, the need, and a hash of the program and its operands."""
        state = hashlib.blake2b(str(self.program).encode(), digest_size=6)
        for letter in LETTERS:
            for array in self.drawn(letter).arrays:
                state.update(array.tobytes())
        return f"{self.op}-{self.need}-{state.hexdigest()}"

    @property
    def call(self) -> str:
        """The row for a reader."""
        return f"{self.op}: {len(self.parts)} calls, {NEEDS[self.need].doc}"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The names of the dtypes of all calls, each once, in order."""
        return tuple(dict.fromkeys(t.dtype.name for t in self.program.main.types))

    @cached_property
    def program(self) -> Program:
        """The calls side by side; their results are the outputs, in order."""
        return _program(self.parts)

    def drawn(self, letter: str) -> Drawn:
        """The program with one of its sets of operands."""
        arrays: list[Array] = []
        for place, part in enumerate(self.parts):
            arrays += _operands(part, letter, place)
        return Drawn(self.program, tuple(arrays), ())


def sweeps(ops: Iterable[Op] | None = None) -> Iterator[Sweep]:
    """The sweeps of the ops (default: all that are defined)."""
    for op in OPS.values() if ops is None else ops:
        yield from sweeps_of(op)


def sweeps_of(op: Op) -> Iterator[Sweep]:
    """The sweeps of one op; none where nothing says what it must give."""
    if judged(op):
        for need, programs in parts_of(op.name, id(op)).items():
            yield from (Sweep(op.name, need, number) for number in range(len(programs)))


# --- programs and operands ---


def _program(parts: Sequence[Part]) -> Program:
    inputs: list[TensorType] = []
    calls: list[tuple[Part, list[tuple[int, Any]]]] = []
    for part in parts:
        operands: list[tuple[int, Any]] = []
        for place, type in enumerate(part.template.types):
            view = view_of(part.view, type) if place in part.viewed else None
            operands.append((len(inputs), view and (view[1], view[2], type)))
            inputs.append(view[0] if view else type)
        calls.append((part, operands))
    instructions: list[Instruction] = []
    count, outputs = len(inputs), list[int]()
    for part, operands in calls:
        numbers: list[int] = []
        for number, view in operands:
            if view:
                op, attributes, type = view
                instructions.append(Instruction(op, (number,), attributes, (type,)))
                number, count = count, count + 1
            numbers.append(number)
        template = part.template
        results = template.results or ()
        instructions.append(
            Instruction(template.op, tuple(numbers), template.attributes, results, template.regions)
        )
        outputs += range(count, count + len(results))
        count += len(results)
    ports = tuple(Port(f"x{i}") for i in range(len(inputs)))
    return Program(Block(tuple(inputs), tuple(instructions), tuple(outputs)), ports)


MADE_FROM: Final = {"nan": "cycle", "cancel": "plain"}
"""The palettes that only sweeps have, and from which they are made."""


def _operands(part: Part, letter: str, place: int) -> list[Array]:
    """The operands of a call, before their views."""
    template = part.template
    reach = max((n for type in template.types for n in type.shape), default=1)
    draws = Draws("sweep", template.op, part.palette, part.view, place, letter)
    kept = template.kept or (None,) * len(template.types)
    arrays = []
    for number, (type, own) in enumerate(zip(template.types, kept, strict=True)):
        view = view_of(part.view, type) if number in part.viewed else None
        source = view[0] if view else type
        values = MADE_FROM.get(part.palette, part.palette)
        arrays.append(draw(source, values, draws, reach) if own is None else own)
    if part.palette == "nan":
        return _with_nan(arrays, "elementwise" in OPS[template.op].traits, letter)
    if part.palette == "cancel":
        return [_cancelling(a) if not n else np.abs(a) for n, a in enumerate(arrays)]
    return arrays


def _with_nan(arrays: list[Array], elementwise: bool, letter: str) -> list[Array]:
    """NaN in the operands, never two in a line, or never in two operands at one place."""
    floats = [n for n, a in enumerate(arrays) if a.dtype.kind not in "biu"]
    found = list(arrays)
    for turn, number in enumerate(floats):
        array = found[number].copy()
        flat = array.reshape(-1)
        if elementwise:
            step = len(floats) + 1
            flat[(turn + (letter == LETTERS[1])) % step :: step] = np.nan
        elif flat.size and (turn == 0 or letter == LETTERS[1]):
            step = (array.shape[-1] + 1) if array.ndim > 1 else flat.size
            flat[::-1][::step] = np.nan  # of a square the diagonal, of a line its end
        found[number] = array
    return found


def _cancelling(array: Array) -> Array:
    """Positive in the first half of the longest axis, and what takes it away again in the other."""
    if array.dtype.kind in "biu" or not array.ndim:
        return array
    lines = np.abs(np.moveaxis(array, int(np.argmax(array.shape)), 0))
    half = len(lines) // 2
    lines[half : 2 * half] = -lines[:half]
    return np.ascontiguousarray(np.moveaxis(lines, 0, int(np.argmax(array.shape))))
