"""From which instruction on a backend's results are wrong, by halving, with a small program for it.

The first instructions of the program, up to some place, are a program themselves, whose outputs are
the values that the rest reads. Where those are right, the fault is behind that place, else before
it. What is found is a place where the program up to an instruction is right and the program with
it is not. Values that are observed are stored, which ends fused kernels; so the instruction alone
may be right, and the fault in the kernel that it is fused into. The reproducer is therefore grown
backwards from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ptir.backend.explanation import Part
from ptir.debug.difference import Difference, Tolerance, difference
from ptir.debug.segment import Segment, segment
from ptir.debug.subject import Array, Subject, by_itself
from ptir.ir.program import Instruction, Program

REPRODUCERS: Final = (1, 10)
"""Instructions of the programs that are tried as reproducers, the smallest first."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Reproducer:
    """A program that shows the fault, its inputs by port, and what both sides make of them."""

    program: Program
    inputs: dict[str, Array]
    got: tuple[Array, ...]
    wanted: tuple[Array, ...]
    output: int
    """The number of the output that is furthest off."""
    difference: Difference
    part: Part | None
    """The kernel (or op) that computes it on the tested backend, where that says so."""


@dataclass(frozen=True)
class Finding:
    """The first instruction that makes a difference, and a program that shows it."""

    position: int
    """Its place among the program's instructions, from 0."""
    instruction: Instruction
    difference: Difference
    """What its results, or values made before it that a kernel with it computes, are off by."""
    reproducer: Reproducer
    runs: int
    """How many programs ran on the tested backend."""


@dataclass(frozen=True)
class _Trial:
    """A segment that ran on both sides."""

    part: Segment
    inputs: tuple[Array, ...]
    got: tuple[Array, ...]
    wanted: tuple[Array, ...]
    found: tuple[Difference, ...]
    wrong: tuple[int, ...]
    """The numbers of outputs that are not allowed."""


def bisect(
    subject: Subject, tolerance: Tolerance, progress: Progress = lambda done, total: None
) -> Finding | None:
    """The first instruction whose results are not allowed; None where the outputs are right.

    Runs at most log2(n) + 3 programs on the tested backend, where the program has n instructions.
    """
    search = _Search(subject, tolerance)
    count = len(subject.program.main.instructions)
    total = 1 + max(1, count - 1).bit_length() + len(REPRODUCERS)
    if not count:
        return None
    trial = search.prefix(count)
    if not trial.wrong:
        return None
    right, wrong = 0, count
    while wrong - right > 1:
        progress(search.runs, total)
        middle = (right + wrong) // 2
        tried = search.prefix(middle)
        if tried.wrong:
            wrong, trial = middle, tried
        else:
            right = middle
    position = wrong - 1
    shown = search.smallest(position) or trial
    progress(total, total)
    instruction = subject.program.main.instructions[position]
    made = search.reproducer(shown)
    return Finding(position, instruction, made.difference, made, search.runs)


class _Search:
    def __init__(self, subject: Subject, tolerance: Tolerance) -> None:
        self.subject, self.tolerance = subject, tolerance
        self._before = subject.tested.runs

    @property
    def runs(self) -> int:
        return self.subject.tested.runs - self._before

    def prefix(self, count: int) -> _Trial:
        """The first ``count`` instructions, on the program's inputs."""
        program = self.subject.program
        whole = count == len(program.main.instructions)
        made = range(len(program.ports), len(program.main.types))
        wanted = tuple(dict.fromkeys(v for v in program.main.outputs if v in made))
        return self._tried(segment(program, 0, count, wanted if whole else None))

    def smallest(self, position: int) -> _Trial | None:
        """The fewest instructions up to ``position`` that are wrong by themselves.

        They are given what the reference makes of those before.
        """
        for size in REPRODUCERS:
            first = max(0, position + 1 - size)
            trial = self._tried(segment(self.subject.program, first, position + 1))
            if trial.wrong:
                return trial
            if not first:
                break
        return None

    def _tried(self, part: Segment) -> _Trial:
        inputs = self._inputs(part)
        got = self.subject.tested.run(part.program, inputs)
        wanted = self.subject.reference.run(part.program, inputs)
        found = tuple(map(difference, got, wanted))
        wrong = tuple(n for n, one in enumerate(found) if not self.tolerance.allows(one))
        return _Trial(part, tuple(inputs), tuple(got), tuple(wanted), found, wrong)

    def _inputs(self, part: Segment) -> list[Array]:
        """What a segment reads that is no parameter: inputs, or what the reference computes."""
        given = self.subject.given(part.reads)
        made = tuple(v for v in part.reads if v >= len(self.subject.program.ports))
        if made:
            before = segment(self.subject.program, 0, part.first, made)
            inputs = [*self.subject.given(before.reads).values()]
            given |= dict(
                zip(made, self.subject.reference.run(before.program, inputs), strict=True)
            )
        return [given[v] for v in part.reads if v in given]

    def reproducer(self, trial: _Trial) -> Reproducer:
        """A wrong trial as a program by itself, whose parameters are inputs too."""
        worst = max(trial.wrong, key=lambda number: trial.found[number].relative)
        program = trial.part.program
        inputs = iter(trial.inputs)
        arrays = {
            port.name: (
                self.subject.reference.parameter(port.name)
                if port.kind == "parameter"
                else next(inputs)
            )
            for port in program.ports
        }
        return Reproducer(
            by_itself(program),
            arrays,
            trial.got,
            trial.wanted,
            worst,
            trial.found[worst],
            self._kernel(program, worst),
        )

    def _kernel(self, program: Program, output: int) -> Part | None:
        """The part of a run on the tested backend that computes an output."""
        plan = self.subject.tested.plan(program)
        explanation = plan.executable.explain()
        if explanation is None:
            return None
        main = plan.optimized.main
        value = main.outputs[output]
        places = (n for n, (made, _) in enumerate(main.numbered()) if value in made)
        position = next(places, None)
        return next((p for p in explanation.parts if position in p.members), None)


__all__ = ["Finding", "Reproducer", "bisect"]
