"""What the whole numbers in a fusion's records stand for: values, instructions, or themselves.

A record says it in the types of its fields. So fusions of different layers, whose numbers differ,
can be compared: values and instructions by where they stand, all else by what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from ptir.types import DType

Value: TypeAlias = Annotated[int, "value"]
"""A value of the block; below zero where there is none."""
Position: TypeAlias = Annotated[int, "position"]
"""An instruction of the block."""
Unordered: TypeAlias = Annotated[tuple[int, ...], "values"]
"""Values whose order means nothing: it is that of their numbers."""

Role = Literal["value", "values", "position", "itself"]
Numbering = Callable[[Role, int], Hashable]
"""What takes the place of a value or of an instruction."""


@cache
def _roles(kind: type) -> tuple[tuple[str, Role], ...] | None:
    """The fields of a record, and what the numbers in each stand for.

    None where it is no record, or one that says the same wherever it stands.
    """
    if not is_dataclass(kind):
        return None
    hints = get_type_hints(kind, include_extras=True)
    if all(_is_plain(hint) for hint in hints.values()):
        return None
    return tuple((one.name, _role(hints[one.name])) for one in fields(kind))


def _is_plain(hint: Any) -> bool:
    """Whether what a field holds is equal to itself alone, and holds no value or instruction."""
    inner = get_args(hint)
    if get_origin(hint) is Annotated or not inner:
        return hint in (int, str, bool, DType, type(None), Ellipsis)
    return all(_is_plain(one) for one in inner)


def _role(hint: Any) -> Role:
    """What the numbers in something of this type stand for."""
    if get_origin(hint) is Annotated:
        role: Role = hint.__metadata__[0]
        return role
    found = {role for inner in get_args(hint) if (role := _role(inner)) != "itself"}
    assert len(found) < 2, f"{hint} holds values and instructions; they need fields of their own"
    return found.pop() if found else "itself"


def renumbered(found: Any, number: Numbering, role: Role = "itself") -> Hashable:
    """A record, or what one holds, with other numbers for values and instructions."""
    kind: Any = type(found)
    roles = _roles(kind)
    if roles is not None:
        return kind, *[renumbered(getattr(found, name), number, own) for name, own in roles]
    if role == "values":
        return frozenset(number("value", one) for one in found)
    if kind is int:
        return found if role == "itself" or found < 0 else number(role, found)
    if isinstance(found, tuple):
        return tuple([renumbered(one, number, role) for one in found])
    if isinstance(found, frozenset):
        return frozenset([renumbered(one, number, role) for one in found])
    if isinstance(found, Mapping):
        return frozenset(renumbered(pair, number, role) for pair in found.items())
    if isinstance(found, float):
        return found.hex()  # zeros of either sign are equal
    held: Hashable = found
    return held
