"""The table of patterns: a row for each functional that is found as ops, and its skeletons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from ptir.errors import UsageError
from ptir.ir.graph import Ref
from ptir.rewrite.candidates import Slot, slots
from ptir.rewrite.skeleton import Skeleton
from ptir.rewrite.worth import ADDED

Operands = dict[str, Ref]
Given = tuple[Operands, dict[str, Any]]
"""Operands and attributes of a composite that a value may be."""


SENTINELS: Final = (0.01234567, 0.3456789)
"""What stands for numbers that are to be found; far from what anybody writes."""


@dataclass(frozen=True)
class Form:
    """One skeleton of a pattern: the spelling and the attributes that it was made with."""

    spelling: str
    names: tuple[str, ...]
    attributes: Mapping[str, Any]
    skeleton: Skeleton
    anchors: int
    levels: int
    inner: frozenset[str]
    """Names of the composites inside."""
    roots: frozenset[str]
    turned: bool
    """Whether the lowering ends in views, behind which the root is."""


Solve = Callable[["Form", Operands, Ref], Iterator[Given]]


def _as_found(form: Form, operands: Operands, root: Ref) -> Iterator[Given]:
    yield operands, dict(form.attributes)


@dataclass(frozen=True)
class PatternRow:
    """What is not in a lowering: what operands look like, and which attributes there are.

    ``needs`` are ops that are in every program that holds it, alternatives as ``exp|tanh``;
    skeletons are made when a program has them, for every choice of ``choices`` at the types of
    ``samples`` (by spelling; ``""`` for those not named). ``signature`` names operands as
    functionals do. ``unknown`` attributes are numbers, found by comparing; ``nice`` gives values
    they probably have. With ``masks`` a score of -1e4 or less counts as -inf. ``permutations`` are
    orders of axes in which the result may be, besides its own.
    """

    functional: str
    signature: str
    needs: tuple[str, ...]
    samples: Mapping[str, tuple[str, ...]]
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    unknown: tuple[str, ...] = ()
    masks: bool = False
    permutations: tuple[tuple[int, ...], ...] = ()
    solve: Solve = _as_found
    nice: Callable[[Operands, str], Sequence[float]] = lambda operands, name: ()

    @cached_property
    def slots(self) -> dict[str, Slot]:
        """The operands of the signature by name."""
        return slots(self.signature)


ROWS: Final[dict[str, PatternRow]] = {}
"""The rows by functional."""


def define_pattern(row: PatternRow) -> PatternRow:
    """Have a functional found where it is written as ops; raises ``UsageError`` for a second."""
    define_own(row)
    ADDED.append(row.functional)
    return row


def define_own(row: PatternRow) -> PatternRow:
    """The same for the rows of this package, which every process has."""
    if row.functional in ROWS:
        raise UsageError(f"pattern {row.functional!r} is defined twice; keep one of them")
    ROWS[row.functional] = row
    return row
