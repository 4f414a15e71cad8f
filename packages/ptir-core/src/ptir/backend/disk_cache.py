"""The disk cache: entries in one file each, named by a key that says everything it depends on.

Processes share a folder: entries are written in one step, read with a checksum, and the least
recently used ones leave when it grows too large.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ptir.backend.folders import ENVIRONMENT, PARTIAL_SUFFIX, cache_folder, replace_file
from ptir.switches import limited_bytes

ABANDONED: Final = 3600.0
"""Seconds after which a file half written belongs to nobody."""

DISK_FRACTION: Final = 64
"""A process looks through a folder when it has added this part of what may be in there."""

_CHECKSUM: Final = 32
_grown: dict[Path, int] = {}
"""Bytes that this process wrote into a folder since it looked through it."""


class Damaged(Exception):  # noqa: N818  not an error of the caller's
    """An entry that is not what was written."""


@dataclass(frozen=True)
class DiskCache:
    """A kind of entries: ``name`` is that of its folder and the end of its files' names.

    ``format`` is written into every file; ``limit`` is the most bytes of all of them, where the
    environment ``variable`` (of ``LIMITS``) says nothing else.
    """

    name: str
    format: int
    limit: int
    variable: str = ""

    @property
    def most(self) -> int:
        """The most bytes of all entries; raises ``UsageError`` for a variable that is no number."""
        said = limited_bytes(self.variable) if self.variable else None
        return self.limit if said is None else said

    @property
    def folder(self) -> Path:
        """Where the entries are."""
        return cache_folder() / self.name

    @property
    def magic(self) -> bytes:
        """What every file starts with."""
        return b"ptir-%s %d\n" % (self.name.encode(), self.format)

    def path(self, key: str) -> Path:
        """The file of an entry."""
        return self.folder / f"{key}.{self.name}"

    def files(self) -> list[Path]:
        """All files, those half written included."""
        return [path for path, _ in self._listed()]

    def read(self, key: str) -> bytes | None:
        """The entry under ``key``, or None where there is none; raises ``Damaged``."""
        path = self.path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        start = len(self.magic) + _CHECKSUM
        entry = content[start:]
        if content[:start] != self.magic + _checksum(entry):
            raise Damaged(f"{path} is damaged")
        with suppress(OSError):  # a folder that may only be read
            os.utime(path)
        return entry

    def write(self, key: str, entry: bytes, limit: int | None = None) -> None:
        """Store ``entry`` and make room for it; raises ``OSError``."""
        replace_file(self.path(key), self.magic + _checksum(entry) + entry)
        self.make_room(len(entry), self.most if limit is None else limit)

    def make_room(self, added: int, limit: int) -> None:
        """Look through the folder, where this process added enough since it did."""
        grown = _grown.get(self.folder, limit) + added
        if grown > limit / DISK_FRACTION:
            self._evict(limit)
            grown = 0
        _grown[self.folder] = grown

    def store(self, key: str, entry: bytes, what: str, otherwise: str) -> None:
        """``write``; a folder that cannot be written is a warning that says what happens then."""
        try:
            self.write(key, entry)
        except OSError as error:
            warnings.warn(
                f"{what}: {self.folder} cannot be written ({error.strerror}); {otherwise} by every"
                f" process; set {ENVIRONMENT} to a folder of yours",
                stacklevel=2,
            )

    def _listed(self) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(FileNotFoundError), os.scandir(self.folder) as listing:
            for file in listing:
                with suppress(FileNotFoundError):  # another process was faster
                    if file.name.endswith((f".{self.name}", PARTIAL_SUFFIX)):
                        yield Path(file.path), file.stat()

    def _evict(self, limit: int) -> None:
        """Remove what was used least recently, and files that were never finished."""
        present = []
        for path, status in self._listed():
            if path.suffix != PARTIAL_SUFFIX:
                present.append((status.st_mtime_ns, status.st_size, path))
            elif time.time() - status.st_mtime > ABANDONED:
                path.unlink(missing_ok=True)
        total = sum(size for _, size, _ in present)
        for _, size, path in sorted(present)[:-1]:
            if total <= limit:
                break
            path.unlink(missing_ok=True)
            total -= size


def digest_key(*parts: str) -> str:
    """The key of what depends on all ``parts``."""
    content = hashlib.blake2b(digest_size=20)
    for part in parts:
        encoded = part.encode()
        content.update(len(encoded).to_bytes(8, "little") + encoded)
    return content.hexdigest()


def _checksum(entry: bytes) -> bytes:
    return hashlib.blake2b(entry, digest_size=_CHECKSUM).digest()
