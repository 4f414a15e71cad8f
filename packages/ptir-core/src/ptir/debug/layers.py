"""Whether a backend computes what another one does: the outputs, and every layer's results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptir.debug.difference import Difference, Tolerance, difference
from ptir.debug.segment import Segment, segment
from ptir.debug.subject import Subject
from ptir.ir.program import Program


@dataclass(frozen=True)
class LayerDifference:
    """A value that leaves a layer (or the program), on both sides."""

    name: str
    """The module's path, with ``#2`` behind the second value of one; ``output0`` and so on."""
    found: Difference
    right: bool


@dataclass(frozen=True)
class Verification:
    """What the outputs differ in as the program runs, and every layer once it is observed.

    Where an output is wrong and no layer is, the observed program has other kernels: what is
    observed is stored, and ends a fused kernel.
    """

    outputs: tuple[LayerDifference, ...]
    layers: tuple[LayerDifference, ...]

    @property
    def right(self) -> bool:
        """Whether all are within what is allowed."""
        return all(row.right for row in (*self.outputs, *self.layers))

    @property
    def first_wrong(self) -> LayerDifference | None:
        """The first layer that is not, or the first output."""
        return next((row for row in (*self.layers, *self.outputs) if not row.right), None)


def verify_layers(subject: Subject, tolerance: Tolerance) -> Verification:
    """Run the program on both sides, once as it is and once with every layer's results as outputs.

    Both runs have the inputs of ``subject``; a layer's difference holds those of all before it.
    """
    program = subject.program
    names = [f"output{number}" for number in range(len(program.main.outputs))]
    outputs = _compared(subject, _whole(program), names, tolerance)
    leaving = dict(_leaving(program))
    if not leaving:
        return Verification(outputs, ())
    count = len(program.main.instructions)
    observed = segment(program, 0, count, tuple(leaving))
    layers = _compared(subject, observed, [*leaving.values()], tolerance)
    return Verification(outputs, layers)


def _whole(program: Program) -> Segment:
    """The program as it is."""
    numbers = tuple(range(len(program.ports)))
    return Segment(0, len(program.main.instructions), program, numbers, program.main.outputs)


def _compared(
    subject: Subject, part: Segment, names: Sequence[str], tolerance: Tolerance
) -> tuple[LayerDifference, ...]:
    given = [*subject.given(part.reads).values()]
    results = (side.run(part.program, given) for side in (subject.tested, subject.reference))
    found = (difference(*pair) for pair in zip(*results, strict=True))
    rows = zip(names, found, strict=True)
    return tuple(LayerDifference(name, one, tolerance.allows(one)) for name, one in rows)


def _leaving(program: Program) -> Iterator[tuple[int, str]]:
    """Values that are read outside the module that makes them, or returned, and their names."""
    main = program.main
    scopes = {v: one.location.scope for numbers, one in main.numbered() for v in numbers}
    elsewhere = {value for value in main.outputs if value in scopes}
    for one in main.instructions:
        place = one.location.scope
        elsewhere |= {v for v in one.operands if v in scopes and not _within(place, scopes[v])}
    seen: dict[str, int] = {}
    for value in sorted(elsewhere):
        scope = scopes[value]
        if not scope:
            continue
        seen[scope] = seen.get(scope, 0) + 1
        yield value, scope if seen[scope] == 1 else f"{scope}#{seen[scope]}"


def _within(scope: str, outer: str) -> bool:
    return scope == outer or scope.startswith(f"{outer}.")
