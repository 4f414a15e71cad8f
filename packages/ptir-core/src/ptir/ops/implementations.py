"""The table of functionals and their implementations.

``ptir.functional`` and plugins fill the table; the select pass reads it, and chooses as the
overrides say (``ptir.ops.overriding``).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ptir.errors import PluginError, UsageError, unknown_name
from ptir.ir.attributes import Attributes
from ptir.ir.program import Block, Instruction
from ptir.ops.signature import CallShapes
from ptir.types import TensorType

Lower = Callable[[Sequence[TensorType], Attributes], Block]
Supports = Callable[[Sequence[TensorType], Attributes], "str | None"]

Accuracy = Literal["exact", "reordered", "narrower"]
ACCURACIES: Final[dict[Accuracy, str]] = {
    "exact": "every bit is that of the portable lowering",
    "reordered": "sums in another order, or rounded a few times more, in the same type",
    "narrower": "factors are rounded to a narrower type; never chosen but by name",
}
"""How an implementation's results may differ from those of the portable one."""

PORTABLE: Final = "portable"
BACKEND: Final = "backend"
OWN: Final = "own"
"""Reported for a composite that no table knows: it keeps the lowering that it came with."""


Preferred = Callable[[Sequence[TensorType], Attributes], "str | None"]


def never(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    """The ``preferred`` predicate of an implementation that is taken only where it is asked for."""
    return None


def always(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    """The ``supports`` predicate of an implementation without conditions."""
    return None


@dataclass(frozen=True)
class Implementation:
    """One lowering of a functional: ``lower(operand types, attributes)`` gives a closed block.

    ``supports`` returns why a call cannot use it, or None. ``accuracy`` says how its results may
    differ from the portable ones. ``preferred`` returns why a call is better computed so than by
    the portable lowering, wherever it runs, or None: then it is the default, unless the backend has
    a kernel. That needs results that are the same to the bit.
    """

    functional: str
    name: str
    lower: Lower = field(compare=False)
    doc: str = ""
    supports: Supports = field(default=always, compare=False)
    accuracy: Accuracy = "reordered"
    preferred: Preferred = field(default=never, compare=False)


@dataclass(frozen=True)
class Functional:
    """A named computation that stays visible in programs, with its implementations by name."""

    name: str
    doc: str
    implementations: dict[str, Implementation] = field(compare=False)
    shapes: CallShapes = field(default=CallShapes(), compare=False)
    """The sizes of its calls that overrides can ask about, and that choices are remembered by."""

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of its attributes, where its portable lowering shows them."""
        portable = self.implementations.get(PORTABLE)
        if portable is None or not hasattr(portable.lower, "__wrapped__"):
            return ()
        parameters = inspect.signature(inspect.unwrap(portable.lower)).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def default(self, types: Sequence[TensorType], attributes: Attributes) -> tuple[str, str]:
        """What a call uses where nobody asks and the backend has no kernel, and why."""
        for one in self.implementations.values():
            reason = one.preferred(types, attributes)
            if reason is not None and one.supports(types, attributes) is None:
                return one.name, reason
        return PORTABLE, ""


FUNCTIONALS: Final[dict[str, Functional]] = {}

INTERNAL_COMPOSITES: Final[dict[str, Lower]] = {}
"""What composites compute that are no functionals, only parts of their implementations, by name."""


SPELLINGS: Final[dict[str, dict[str, Lower]]] = {}
"""Other ways in which people write what a functional computes, by functional and by name.

No program is lowered to them: they are found in programs, and raised to the functional.
"""


def define_functional(name: str, doc: str, shapes: CallShapes | None = None) -> Functional:
    """Add a functional to the table; a name that exists already is an error."""
    if name in FUNCTIONALS:
        raise PluginError(f"functional {name!r} is defined twice; choose another name")
    FUNCTIONALS[name] = Functional(name, doc, {}, shapes or CallShapes())
    return FUNCTIONALS[name]


def register(implementation: Implementation) -> Implementation:
    """Add an implementation to its functional; unknown functionals and taken names are errors.

    One that is preferred for some calls must be exact: what nobody asked for changes no bit.
    """
    if implementation.preferred is not never and implementation.accuracy != "exact":
        raise PluginError(
            f"{implementation.functional}: implementation {implementation.name!r} is preferred for"
            f" some calls and {implementation.accuracy}; only exact ones may be a default"
        )
    table = functional(implementation.functional).implementations
    if implementation.name in table or implementation.name == BACKEND:
        raise PluginError(
            f"{implementation.functional}: implementation {implementation.name!r} exists already;"
            " choose another name"
        )
    table[implementation.name] = implementation
    return implementation


def known_lowerings(name: str) -> tuple[Lower, ...]:
    """Every lowering that composites of this name have, the captured one first.

    None for a name of no table. A program that was read may hold standard ones before anybody has
    imported them.
    """
    importlib.import_module("ptir.functional")  # the room below, which adds itself to the tables
    if name in INTERNAL_COMPOSITES:
        return (INTERNAL_COMPOSITES[name],)
    named = FUNCTIONALS[name].implementations if name in FUNCTIONALS else {}
    ordered = sorted(named, key=lambda implementation: implementation != PORTABLE)
    return tuple(named[implementation].lower for implementation in ordered)


def lowered_again(composite: Instruction, types: Sequence[TensorType]) -> Block | None:
    """What a composite computes of other types than it was captured with.

    None for a name of no table; what its lowering raises where it refuses the types.
    """
    marks = ("name", "implementation")
    given = {k: v for k, v in composite.attributes.items() if k not in marks}
    lowerings = known_lowerings(composite.name)
    return lowerings[0](types, Attributes(given)) if lowerings else None


def functional(name: str) -> Functional:
    """The functional called ``name``; raises ``UsageError`` with the nearest names."""
    found = FUNCTIONALS.get(name)
    if found is None:
        raise UsageError(unknown_name("functional", name, FUNCTIONALS))
    return found
