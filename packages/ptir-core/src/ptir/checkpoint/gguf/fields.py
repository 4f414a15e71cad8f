"""The keys of one architecture: the only readers of them, with the bounds of ``FIELDS``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ptir.checkpoint.gguf.metadata import Strings, Value
from ptir.errors import CheckpointError, short
from ptir.models.fields import FIELDS


class Key(NamedTuple):
    """A number: its key behind the architecture's prefix, and the field of a configuration."""

    name: str
    field: str


@dataclass(frozen=True)
class Keys:
    """The metadata of a model whose architecture's keys begin with ``prefix``.

    ``asked`` are the keys that were asked for. ``of`` names the field of a configuration whose
    bounds hold. All raise ``CheckpointError``
    with the key, what was found and what may be there.
    """

    path: Path
    metadata: Mapping[str, Value]
    prefix: str
    asked: set[str] = field(default_factory=set[str])

    def found(self, key: str, default: Any = None) -> Any:
        """What stands at a key; notes that it was asked for."""
        name = f"{self.prefix}.{key}"
        self.asked.add(name)
        return self.metadata.get(name, default)

    def number(self, key: str, of: str, default: Any = None) -> Any:
        """The number at a key; ``default`` is for a file without it.

        A key that has one for each layer counts as a number where all are equal.
        """
        found = self.found(key)
        if found is None:
            if default is None:
                self.refuse(key, f"is missing; it must be {FIELDS[of]}: convert the model anew")
            return default
        if hasattr(found, "dtype"):
            if not found.size or (found != found[0]).any():
                rule = (
                    f"{short(found.tolist()[:8])} differs between layers, which is not implemented"
                )
                self.refuse(key, f"{rule}: choose another model")
            found = found[0].item()
        if not FIELDS[of].holds(found):
            self.refuse(key, f"{short(found)} must be {FIELDS[of]}; fetch the file again")
        return found

    def at(self, key: Key, default: Any = None) -> Any:
        """The number of a row; ``default`` is for a file without it."""
        return self.number(key.name, key.field, default)

    def optional(self, key: str, of: str) -> Any:
        """The number at a key, or None for a file without it, or with 0."""
        found = self.found(key)
        return self.number(key, of) if found is not None and _not_zero(found) else None

    def of_layers(self, key: str, of: str, layers: int) -> list[int]:
        """A number for each of ``layers``, 0 for one that has none; one number stands for all."""
        found = self.found(key)
        if not hasattr(found, "tolist"):
            return [int(self.number(key, of))] * layers
        values = found.tolist()
        if len(values) != layers:
            self.refuse(key, f"{len(values)} numbers for {layers} layers: fetch the file again")
        wrong = next((one for one in values if one != 0 and not FIELDS[of].holds(one)), None)
        if wrong is not None:
            self.refuse(key, f"{short(wrong)} must be 0 or {FIELDS[of]}; fetch the file again")
        return [int(one) for one in values]

    def text(self, key: str, default: str) -> str:
        """The string at a key."""
        found = self.found(key, default)
        if not isinstance(found, str):
            self.refuse(key, f"{short(found)} must be a string; fetch the file again")
        return found

    def flag(self, key: str, default: bool) -> bool:
        """The truth value at a key."""
        found = self.found(key, default)
        if type(found) is not bool:
            self.refuse(key, f"{short(found)} must be true or false; fetch the file again")
        return found

    def require(self, holds: bool, key: str, rule: str) -> None:
        """Refuse the value of a key unless the rule holds."""
        if not holds:
            self.refuse(key, f"{short(self.metadata.get(f'{self.prefix}.{key}'))}: {rule}")

    def refuse(self, key: str, rule: str) -> NoReturn:
        """Say what is wrong with a key."""
        raise CheckpointError(f"{self.path}: key {f'{self.prefix}.{key}'!r}: {rule}")


def _not_zero(found: Value) -> bool:
    return bool(found.size) if hasattr(found, "size") else found not in (0, 0.0, False)


def plain(value: Value) -> Any:
    """A value as Python's own numbers, strings and lists."""
    if isinstance(value, Strings):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value
