"""Nested containers as a flat list of leaves plus a structure that can be a key.

Containers are tuples, named tuples, lists, dicts and dataclasses. None and strings are part of the
structure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, Final

Structure = Hashable
Reader = Callable[[Any], Iterable[tuple[Any, Any]]]
Assembler = Callable[[Iterator[Any]], Any]
LEAF: Final = "*"
_CONSTANTS: Final = (type(None), str)


def flatten(value: Any, leaves: list[Any]) -> Structure:
    """Append the leaves of ``value`` to ``leaves`` and return its structure."""
    kind: Any = type(value)
    parts: Reader | None = _reader(kind)
    if parts is None:
        leaves.append(value)
        return LEAF
    if kind in _CONSTANTS:
        return (kind, value)
    return (kind, *[(name, flatten(part, leaves)) for name, part in parts(value)])


@cache
def _reader(kind: Any) -> Reader | None:
    """What gives the parts of a container of a kind, by name; None for leaves."""
    if kind in _CONSTANTS:
        return lambda value: ()
    if kind is dict:
        return dict.items
    if kind is tuple or kind is list or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return enumerate
    if dataclasses.is_dataclass(kind):
        return _fields_reader([field.name for field in dataclasses.fields(kind)])
    return None


def _fields_reader(names: list[str]) -> Reader:
    if len(names) < 2:
        return lambda value: [(name, getattr(value, name)) for name in names]
    values = attrgetter(*names)
    return lambda value: zip(names, values(value), strict=True)


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """The nested value with ``structure`` and leaves taken in order.

    Dataclasses are made by their constructor; fields that it does not take are set afterwards.
    """
    return assembler(structure)(leaves)


def assembler(structure: Any) -> Assembler:
    """``unflatten`` for one structure, for those who do it often."""
    if structure == LEAF:
        return next
    kind, *parts = structure
    if kind in _CONSTANTS:
        return lambda leaves: parts[0]
    makers = [(name, assembler(part)) for name, part in parts]
    if kind is dict:
        return lambda leaves: {name: make(leaves) for name, make in makers}
    if not issubclass(kind, tuple | list):
        return _dataclass_assembler(kind, makers)
    if hasattr(kind, "_fields"):
        return lambda leaves: kind(*[make(leaves) for _, make in makers])
    return lambda leaves: kind([make(leaves) for _, make in makers])


def _dataclass_assembler(kind: Any, makers: list[tuple[str, Assembler]]) -> Assembler:
    taken = {field.name for field in dataclasses.fields(kind) if field.init}

    def assemble(leaves: Iterator[Any]) -> Any:
        values = {name: make(leaves) for name, make in makers}
        made = kind(**{name: part for name, part in values.items() if name in taken})
        for name in values.keys() - taken:
            object.__setattr__(made, name, values[name])
        return made

    return assemble


def spans(structure: Any) -> dict[Any, range]:
    """Which leaves each part of a container has, by its name or number; empty for no container."""
    found: dict[Any, range] = {}
    first = 0
    for name, part in structure[1:] if structure != LEAF and structure[0] not in _CONSTANTS else ():
        found[name] = range(first, first + _count(part))
        first = found[name].stop
    return found


def _count(structure: Any) -> int:
    """How many leaves there are."""
    if structure == LEAF:
        return 1
    return 0 if structure[0] in _CONSTANTS else sum(_count(part) for _, part in structure[1:])


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
