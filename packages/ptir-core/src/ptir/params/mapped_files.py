"""Files that stay mapped while programs read them: each must be as long as when it was mapped.

What lies behind the end of a file that was cut cannot be read: the system ends the process
(SIGBUS). So the length is looked at before a file is read and before every run of a program that
reads it where it lies. A file that is cut during a run is not noticed by that; a backend may
survive it (``note_cut``).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any, Final, Self
from weakref import WeakKeyDictionary, WeakSet

from ptir.errors import CheckpointError

_paths: Final[WeakKeyDictionary[mmap.mmap, str]] = WeakKeyDictionary()


_damaged: Final[WeakSet[mmap.mmap]] = WeakSet()
"""Mappings with pages that are no longer the file's."""


def mapped(descriptor: int, path: str | PathLike[str]) -> mmap.mmap:
    """A file mapped for reading; raises ``OSError`` or ``ValueError``."""
    mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    _paths[mapping] = fspath(path)
    return mapping


def check_whole(mappings: Iterable[mmap.mmap], what: str = "weights") -> None:
    """Raise ``CheckpointError`` where a file was cut since it was mapped.

    ``what`` is what is to be read of it.
    """
    for mapping in mappings:
        found, length = mapping.size(), len(mapping)
        if found < length or mapping in _damaged:
            why = f"was cut from {length} to {found} bytes"
            if found >= length:
                why = "could not be read (it was cut and written again, or the disk fails)"
            raise CheckpointError(
                f"{_paths.get(mapping, 'a mapped file')}: {what}: the file {why} while it was in"
                " use; fetch it again and load the model anew"
            )


def note_cut(mappings: Iterable[mmap.mmap]) -> None:
    """Files were cut while they were read: raises ``CheckpointError``, now and for every use."""
    found = [*mappings]
    _damaged.update(found)
    check_whole(found)


class BoundParameters(tuple[Any, ...]):
    """Handles of a program's parameters, and the mapped files that some of them are read from.

    ``stored`` is what the captured program's parameter ports stand for.
    """

    mappings: tuple[mmap.mmap, ...]
    stored: Mapping[str, Any]

    def __new__(
        cls,
        handles: Iterable[Any],
        mappings: Iterable[mmap.mmap],
        stored: Mapping[str, Any] | None = None,
    ) -> Self:
        """The handles as a tuple that knows the files."""
        made = super().__new__(cls, handles)
        made.mappings, made.stored = tuple(mappings), stored or {}
        return made
