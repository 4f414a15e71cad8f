"""Nested tuples, lists and dicts as a flat list of leaves plus a structure that can be a key."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

Structure = Hashable
LEAF = "*"


def flatten(value: Any, leaves: list[Any]) -> Structure:
    """Append the leaves of ``value`` to ``leaves`` and return its structure."""
    kind = type(value)
    if kind is tuple or kind is list:
        return (kind.__name__, *[flatten(item, leaves) for item in value])
    if kind is dict:
        return ("dict", *[(name, flatten(item, leaves)) for name, item in value.items()])
    leaves.append(value)
    return LEAF


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """The nested value with ``structure`` and leaves taken in order."""
    if structure == LEAF:
        return next(leaves)
    kind, *items = structure
    if kind == "dict":
        return {name: unflatten(item, leaves) for name, item in items}
    values = [unflatten(item, leaves) for item in items]
    return tuple(values) if kind == "tuple" else values
