"""What a backend declares about itself, checked once, where it is loaded.

Core and the conformance suite build on these declarations, so that one of a wrong kind would fail
far from its cause, and a misspelt name would be a promise that nothing proves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ptir.backend.contract import Backend, Device
from ptir.backend.entries import Entry, guard
from ptir.backend.interpreter import Interpreter
from ptir.errors import PluginError, unknown_name
from ptir.ops import OPS
from ptir.ops.profiles import PROFILES


def check_declared(backend: Backend, entry: Entry) -> None:
    """Refuse a wrong name, wrong claims and unknown ops; raises ``PluginError``.

    An op of another distribution is known once the backend has imported the module that defines it.
    """
    _check_name(_read(backend, "name"), entry)
    check_profiles("claims", _read(backend, "claims"))
    _check_rounded(_read(backend, "correctly_rounded"))
    if isinstance(backend, Interpreter):
        _check_ops(_read(backend, "ops"))


def check_claimed(backend: Backend, device: Device) -> None:
    """Refuse what is no set of profiles from ``claimed``; raises ``PluginError``."""
    with guard("claimed()"):
        found = backend.claimed(device)
    check_profiles("claimed()", found)


def check_profiles(what: str, found: Any) -> None:
    """Refuse what is no frozenset of profiles; ``what`` declares it. Raises ``PluginError``."""
    if not isinstance(found, frozenset):
        raise PluginError(
            f"{what} is {found!r} ({type(found).__name__});"
            " write a frozenset of profiles: frozenset({'core'})"
        )
    for name in found:
        if name not in PROFILES:
            raise PluginError(f"{what} names an {unknown_name('profile', str(name), PROFILES)}")


def _read(backend: Backend, name: str) -> Any:
    with guard(f"reading {name}"):
        return getattr(backend, name, None)


def _check_name(name: Any, entry: Entry) -> None:
    if not isinstance(name, str):
        raise PluginError(
            f"{entry.value} has the name {name!r}; write name = {entry.name!r}, as the entry point"
        )
    if name != entry.name:
        raise PluginError(
            f"entry point {entry.name!r} gives a backend named {name!r}; they must be equal:"
            " rename one"
        )


def _check_rounded(found: Any) -> None:
    """Only an op that may be rounded or not can be claimed to be rounded."""
    can = sorted(op.name for op in OPS.values() if op.accuracy.startswith("rounded or"))
    if not isinstance(found, frozenset):
        raise PluginError(
            f"correctly_rounded is {found!r} ({type(found).__name__});"
            f" write a frozenset of ops: frozenset({{{can[0]!r}}})"
        )
    for name in found:
        if name not in OPS:
            raise PluginError(f"correctly_rounded names an {unknown_name('op', str(name), OPS)}")
        if name not in can:
            raise PluginError(
                f"correctly_rounded names {name!r}, whose accuracy is {OPS[name].accuracy} for"
                f" every backend (docs/reference/accuracy.md); it can name {', '.join(can)}"
            )


def _check_ops(found: Any) -> None:
    if found is None:
        return
    if isinstance(found, str) or not isinstance(found, Collection):
        raise PluginError(
            f"ops is {found!r} ({type(found).__name__});"
            " write a collection of names of ops: ('add', 'mul')"
        )
    for name in found:
        if name not in OPS:
            raise PluginError(f"ops names an {unknown_name('op', str(name), OPS)}")
