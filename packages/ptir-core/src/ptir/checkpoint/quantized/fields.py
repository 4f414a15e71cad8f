"""What a quantization config says, field by field: each read is checked, refused by its name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NoReturn

from ptir.errors import CheckpointError, short

_ABSENT: Final = object()


class Fields:
    """The fields of one object of a configuration; ``where`` is what messages call it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def refuse(self, key: str, rule: str) -> NoReturn:
        """Raise ``CheckpointError`` about a field."""
        raise CheckpointError(f"{self.where}: {key} {short(self.values.get(key))}: {rule}")

    def whole(self, key: str, among: Collection[int] = (), default: object = _ABSENT) -> int:
        """A whole number, perhaps one of ``among``."""
        found = self._found(key, default)
        if type(found) is not int:
            self.refuse(key, "must be a whole number")
        if among and found not in among:
            self.refuse(key, f"must be one of {', '.join(map(str, among))}")
        return found

    def text(self, key: str, among: Collection[str], default: object = _ABSENT) -> str:
        """One of some words, written in either case."""
        found = self._found(key, default)
        if not isinstance(found, str) or found.lower() not in among:
            self.refuse(key, f"must be one of {', '.join(among)}")
        return found.lower()

    def flag(self, key: str, default: object = _ABSENT) -> bool:
        """True or false."""
        found = self._found(key, default)
        if not isinstance(found, bool):
            self.refuse(key, "must be true or false")
        return found

    def names(self, *keys: str) -> tuple[str, ...]:
        """The names listed under the first of ``keys`` that is there; none where none is."""
        key = next((key for key in keys if self.values.get(key) is not None), None)
        found = [] if key is None else self.values[key]
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            self.refuse(str(key), "must be a list of names")
        return tuple(found)

    def inner(self, key: str) -> Fields:
        """The fields of an object inside."""
        found = self._found(key, _ABSENT)
        if not isinstance(found, Mapping):
            self.refuse(key, "must be an object")
        return Fields(found, f"{self.where}: {key}")

    def refuse_set(self, keys: Iterable[str], rule: str) -> None:
        """Refuse what must be absent, null, false or empty."""
        for key in keys:
            if self.values.get(key):
                self.refuse(key, rule)

    def _found(self, key: str, default: object) -> Any:
        found = self.values.get(key)
        if found is not None:
            return found
        if default is _ABSENT:
            raise CheckpointError(f"{self.where}: has no {key}; fetch the checkpoint again")
        return default
