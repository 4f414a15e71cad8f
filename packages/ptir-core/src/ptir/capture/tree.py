"""Nested containers as a flat list of leaves plus a structure that can be a key.

Containers are tuples, named tuples, lists, dicts and dataclasses. None and strings are part of the
structure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from typing import Any, Final

Structure = Hashable
LEAF: Final = "*"
_CONSTANTS: Final = (type(None), str)


def flatten(value: Any, leaves: list[Any]) -> Structure:
    """Append the leaves of ``value`` to ``leaves`` and return its structure."""
    if type(value) in _CONSTANTS:
        return (type(value), value)
    parts = _parts(value)
    if parts is None:
        leaves.append(value)
        return LEAF
    return (type(value), *[(name, flatten(part, leaves)) for name, part in parts])


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container holds, by name; None for a leaf."""
    kind = type(value)
    if kind is dict:
        return list(value.items())
    if kind is tuple or kind is list or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """The nested value with ``structure`` and leaves taken in order.

    Dataclasses are made by their constructor; fields that it does not take are set afterwards.
    """
    if structure == LEAF:
        return next(leaves)
    kind, *parts = structure
    if kind in _CONSTANTS:
        return parts[0]
    values = {name: unflatten(part, leaves) for name, part in parts}
    if kind is dict:
        return values
    if issubclass(kind, tuple | list):
        return kind(*values.values()) if hasattr(kind, "_fields") else kind(values.values())
    taken = {field.name for field in dataclasses.fields(kind) if field.init}
    made = kind(**{name: part for name, part in values.items() if name in taken})
    for name in values.keys() - taken:
        object.__setattr__(made, name, values[name])
    return made


def describe(structure: Any) -> str:
    """A structure as messages show it: ``(*, {'w': *})``."""
    if structure == LEAF:
        return LEAF
    kind, *parts = structure
    if kind in _CONSTANTS:
        return repr(parts[0])
    if kind is dict:
        return "{" + ", ".join(f"{name!r}: {describe(part)}" for name, part in parts) + "}"
    if kind is tuple or kind is list:
        inside = ", ".join(describe(part) for _, part in parts)
        return f"[{inside}]" if kind is list else f"({inside}{',' * (len(parts) == 1)})"
    return f"{kind.__name__}({', '.join(f'{name}={describe(part)}' for name, part in parts)})"
