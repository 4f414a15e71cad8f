"""Small records by key in one JSON file of the cache folder: a file that fails is a warning."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ptir.backend.folders import ENVIRONMENT, cache_folder, replace_file

T = TypeVar("T")


@dataclass(frozen=True)
class RecordFile(Generic[T]):
    """``NAME.json`` with an object of records, each made by ``record`` of its fields.

    ``record`` raises ``TypeError`` for what it does not take. ``holds`` says what the records are,
    ``unread`` and ``unwritten`` what happens where they cannot be read or written.
    """

    name: str
    record: Callable[..., T]
    holds: str
    unread: str
    unwritten: str

    @property
    def path(self) -> Path:
        """Where the records are."""
        return cache_folder() / f"{self.name}.json"

    def read(self) -> dict[str, T]:
        """The records; none, and a warning, where the file is something else."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return {str(key): self.record(**one) for key, one in found[self.name].items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            said = f"{self.path}: no {self.holds} ({error}); {self.unread}"
            warnings.warn(said, RuntimeWarning, stacklevel=3)
            return {}

    def write(self, records: Mapping[str, Any]) -> None:
        """Replace the file; where that fails, a warning says what happens then."""
        held = {key: asdict(record) for key, record in records.items()}
        try:
            replace_file(self.path, json.dumps({self.name: held}, indent=1).encode())
        except OSError as error:
            warnings.warn(
                f"{self.path}: cannot be written ({error.strerror}); {self.unwritten};"
                f" set {ENVIRONMENT} to a folder of yours",
                RuntimeWarning,
                stacklevel=3,
            )
