"""The overrides in force: those of plugins, of the environment, of models, of ``with`` blocks.

``RANKS`` in ``ptir.ops.policies`` is their precedence. What decides about a call is the strongest
override that fits it; without one the backend's claim decides, else which implementation is
preferred for the call, else the portable lowering is taken.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from ptir.ops.policies import (
    Origin,
    Override,
    Overrides,
    Policy,
    merged,
    origin,
    parse_override,
    parse_overrides,
    parse_target,
)

ENVIRONMENT: Final = "PTIR_OVERRIDE"
"""The variable that holds overrides, set apart by blanks or semicolons; read once per process."""

_active: ContextVar[Overrides | None] = ContextVar("ptir_overrides", default=None)
_of_plugins: list[Override] = []
_of_process: Overrides | None = None


def active_overrides() -> Overrides:
    """The overrides in force here; part of every plan's key.

    Raises ``UsageError`` for a mistake in the environment's.
    """
    active = _active.get()
    if active is not None:
        return active
    return _of_process if _of_process is not None else _process_overrides()


def _process_overrides() -> Overrides:
    """Those of plugins and the environment, which hold everywhere in the process."""
    global _of_process
    text = os.environ.get(ENVIRONMENT, "")
    given: list[Override] = []
    if text.strip():
        importlib.import_module("ptir.functional")  # the room below fills the table of names
        given = parse_overrides(text, origin("environment", ENVIRONMENT))
    _of_process = merged(_of_plugins, given)
    return _of_process


def forget_process_overrides() -> None:
    """Let this process read the environment again, as a new one would."""
    global _of_process
    _of_process = None


def plug_in_override(owner: str, added: Override) -> None:
    """Let an override of a plugin hold from now on, where nothing stronger says otherwise."""
    found = Override(added.functional, added.policy, added.conditions, origin("plugin", owner))
    _of_plugins.append(found)
    forget_process_overrides()


def overrides_from(given: Mapping[str, str | Policy], source: Origin) -> tuple[Override, ...]:
    """A mapping of targets (a functional, with conditions or not) to policies, checked."""
    return tuple(parse_target(name, str(policy), source) for name, policy in given.items())


@contextmanager
def in_force(added: Iterable[Override]) -> Iterator[None]:
    """Add overrides inside a ``with`` block, each at the rank of its origin."""
    token = _active.set(merged(active_overrides(), added))
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def overrides(
    policies: Mapping[str, str | Policy] | str | None = None, **more: str | Policy
) -> Iterator[None]:
    """Choose implementations inside a ``with`` block: ``overrides(softmax="force=online")``.

    ``policies`` maps targets to policies, which may have conditions (``{"linear[M=1]":
    "force=rows"}``), or is one override as text. Inner blocks win over outer ones, and all over
    what was asked for elsewhere. Raises ``UsageError`` for unknown functionals, implementations,
    dimensions or policies, with the nearest names and the place in the text.
    """
    source = origin("context", "with ptir.overrides(...)")
    importlib.import_module("ptir.functional")
    given = [parse_override(policies, source)] if isinstance(policies, str) else []
    named = {} if policies is None or isinstance(policies, str) else policies
    with in_force([*given, *overrides_from({**named, **more}, source)]):
        yield
