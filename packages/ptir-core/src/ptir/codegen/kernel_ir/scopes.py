"""The names of a kernel, as the verifier meets them: what is known of each where it stands.

What comes in: declarations and assignments in their order. What goes out: the record of a name in
the innermost block that has it, and whether all threads of a workgroup come to where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ptir.codegen.expressions.expr import Var

Range = tuple[int, int]
"""The least and the greatest value of a whole number."""


@dataclass
class Known:
    """A name in scope: its variable, whether it may change, and whether threads differ in it."""

    variable: Var
    changes: bool
    varying: bool
    range: Range | None = None
    """Where a whole number is known to lie."""
    counted: bool = False
    """Whether it takes every number of its range, as a loop variable between literals does."""


class Scopes:
    """Blocks within blocks; ``begun`` are the names that every kernel finds."""

    def __init__(self, *begun: Known) -> None:
        self.blocks = [{one.variable.name: one for one in begun}]
        self.loops = 0
        """How many loops stand around."""
        self.diverged = False
        """Whether only some threads of a workgroup may come here."""

    @contextmanager
    def nested(self, varying: bool = False, loop: bool = False) -> Iterator[None]:
        """A block; ``varying`` where only some threads may come."""
        before, self.diverged = self.diverged, self.diverged or varying
        self.blocks.append({})
        self.loops += loop
        yield
        self.loops -= loop
        self.blocks.pop()
        self.diverged = before

    def __getitem__(self, name: str) -> Known | None:
        """What a name is here."""
        return next((block[name] for block in reversed(self.blocks) if name in block), None)

    def declare(self, known: Known) -> None:
        """A name from here on."""
        known.varying = known.varying or (known.changes and self.diverged)
        self.blocks[-1][known.variable.name] = known

    def changed(self, name: str, varying: bool) -> None:
        """A variable has another value: what conditions said of it holds no more."""
        for known in (block[name] for block in self.blocks if name in block):
            known.range, known.varying = None, known.varying or varying
