"""The table of functionals and their implementations, and the policies that choose among them.

``ptir.functional`` and plugins fill the table; the select pass reads it. Policies come from
``with overrides(...)``, the command line and checkpoint configuration, all through one context.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal

from ptir.errors import PluginError, UsageError, unknown_name
from ptir.ir.attributes import Attributes
from ptir.ir.program import Block
from ptir.types import TensorType

Lower = Callable[[Sequence[TensorType], Attributes], Block]
Supports = Callable[[Sequence[TensorType], Attributes], "str | None"]

PORTABLE: Final = "portable"
BACKEND: Final = "backend"
OWN: Final = "own"
"""Reported for a composite that no table knows: it keeps the lowering that it came with."""


def always(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    """The ``supports`` predicate of an implementation without conditions."""
    return None


@dataclass(frozen=True)
class Implementation:
    """One lowering of a functional: ``lower(operand types, attributes)`` gives a closed block.

    ``supports`` returns why a call cannot use it, or None.
    """

    functional: str
    name: str
    lower: Lower = field(compare=False)
    doc: str = ""
    supports: Supports = field(default=always, compare=False)


@dataclass(frozen=True)
class Functional:
    """A named computation that stays visible in programs, with its implementations by name."""

    name: str
    doc: str
    implementations: dict[str, Implementation] = field(compare=False)


FUNCTIONALS: Final[dict[str, Functional]] = {}

INTERNAL_COMPOSITES: Final[dict[str, Lower]] = {}
"""What composites compute that are no functionals, only parts of their implementations, by name."""


SPELLINGS: Final[dict[str, dict[str, Lower]]] = {}
"""Other ways in which people write what a functional computes, by functional and by name.

No program is lowered to them: they are found in programs, and raised to the functional.
"""


def define_functional(name: str, doc: str) -> Functional:
    """Add a functional to the table; a name that exists already is an error."""
    if name in FUNCTIONALS:
        raise PluginError(f"functional {name!r} is defined twice; choose another name")
    FUNCTIONALS[name] = Functional(name, doc, {})
    return FUNCTIONALS[name]


def register(implementation: Implementation) -> Implementation:
    """Add an implementation to its functional; unknown functionals and taken names are errors."""
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


def functional(name: str) -> Functional:
    """The functional called ``name``; raises ``UsageError`` with the nearest names."""
    found = FUNCTIONALS.get(name)
    if found is None:
        raise UsageError(unknown_name("functional", name, FUNCTIONALS))
    return found


@dataclass(frozen=True)
class Policy:
    """How a functional's implementation is chosen.

    ``default`` takes the backend's claim, else ``portable``; ``force`` takes ``implementation``;
    ``benchmark`` times all that apply and keeps at most ``cache`` results per functional.
    """

    kind: Literal["default", "force", "benchmark"] = "default"
    implementation: str = ""
    cache: int = 64

    def __str__(self) -> str:
        match self.kind:
            case "force":
                return f"force={self.implementation}"
            case "benchmark":
                return f"benchmark(cache={self.cache})"
            case _:
                return "default"


_BENCHMARK = re.compile(r"benchmark(?:\(cache=(?P<cache>[1-9][0-9]*)\))?")


def parse_policy(functional_name: str, text: str) -> Policy:
    """The policy written as ``text`` for a functional; raises ``UsageError`` naming what exists."""
    known = functional(functional_name).implementations
    if text == "default":
        return Policy()
    if match := _BENCHMARK.fullmatch(text):
        return Policy("benchmark", cache=int(match["cache"] or 64))
    kind, separator, name = text.partition("=")
    if kind != "force" or not separator:
        raise UsageError(
            f"override {functional_name}={text!r}: policies are default, force=NAME and"
            " benchmark(cache=N)"
        )
    if name not in known and name != BACKEND:
        kind = f"implementation of {functional_name}"
        raise UsageError(unknown_name(kind, name, [*known, BACKEND]))
    return Policy("force", name)


def parse_override(text: str) -> tuple[str, Policy]:
    """``FUNCTIONAL=POLICY`` as given to ``--override``; raises ``UsageError``."""
    name, separator, policy = text.partition("=")
    if not separator:
        raise UsageError(f"override {text!r}: write FUNCTIONAL=POLICY, e.g. softmax=force=online")
    return name, parse_policy(name, policy)


Overrides = tuple[tuple[str, Policy], ...]

_active: ContextVar[Overrides] = ContextVar("ptir_overrides", default=())


def active_overrides() -> Overrides:
    """The policies in force here, ordered by functional; part of every plan's key."""
    return _active.get()


@contextmanager
def overrides(
    policies: Mapping[str, str | Policy] | None = None, **more: str | Policy
) -> Iterator[None]:
    """Choose implementations inside a ``with`` block: ``overrides(softmax="force=online")``.

    Inner blocks win over outer ones. Raises ``UsageError`` for unknown functionals,
    implementations or policies, with the nearest names.
    """
    chosen = dict(active_overrides())
    for name, policy in {**(policies or {}), **more}.items():
        chosen[name] = parse_policy(name, str(policy))
    token = _active.set(tuple(sorted(chosen.items(), key=lambda item: item[0])))
    try:
        yield
    finally:
        _active.reset(token)
