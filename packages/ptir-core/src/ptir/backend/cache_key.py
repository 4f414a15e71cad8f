"""Keys of the disk cache with the parts that they are made of, and which of them differ in a miss.

An entry's name is a digest, which says nothing when it is not found. So there is a list
of the keys that were stored, with a digest of each named part.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from ptir import events
from ptir.backend.disk_cache import DiskCache, digest_key
from ptir.backend.folders import replace_file

LIMIT: Final = 1 << 18
"""Bytes of a list of keys from which its older half goes."""


class CacheKey(str):
    """A key, and its parts by name."""

    __slots__ = ("parts",)
    parts: Mapping[str, str]

    @classmethod
    def of(cls, parts: Mapping[str, str]) -> Self:
        """The digest of all parts, in their order."""
        made = cls(digest_key(*parts.values()))
        made.parts = {
            name: hashlib.blake2b(part.encode(), digest_size=6).hexdigest()
            for name, part in parts.items()
        }
        return made


def known_keys(cache: DiskCache) -> Path:
    """The list of keys of a cache."""
    return cache.folder.parent / "keys" / f"{cache.name}.jsonl"


def note_stored(cache: DiskCache, key: CacheKey) -> None:
    """Add a key to the list; where it cannot be written, misses say less."""
    path, line = known_keys(cache), json.dumps({"key": key, "parts": key.parts}) + "\n"
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(line.encode())
            size = file.tell()
        if size > LIMIT:
            lines = path.read_bytes().splitlines(keepends=True)
            replace_file(path, b"".join(lines[len(lines) // 2 :]))


def tell_lookup(cache: DiskCache, key: CacheKey, hit: bool) -> None:
    """Whoever listens hears of a lookup; of a miss, why."""
    if events.listening():
        why = "" if hit else why_missed(cache, key)
        events.emit(events.CacheLookup(cache.name, key, hit, why))


def why_missed(cache: DiskCache, key: CacheKey) -> str:
    """The parts in which the stored key that is nearest differs."""
    if os.environ.get("PTIR_REBUILD_KERNELS") == "1":
        return "PTIR_REBUILD_KERNELS is set"
    found = [*_listed(cache)]
    if not found:
        return "nothing was stored yet"
    name, parts = min(reversed(found), key=lambda one: len(_differing(key.parts, one[1])))
    differing = _differing(key.parts, parts)
    if not differing:
        return "it was stored, and has left since"
    return f"other {', '.join(differing)} than in {name[:8]}, the nearest of {len(found)}"


def _differing(parts: Mapping[str, str], known: Mapping[str, Any]) -> list[str]:
    return [name for name, digest in parts.items() if known.get(name) != digest]


def _listed(cache: DiskCache) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Keys with their parts; lines of other processes that are half written are left out."""
    try:
        lines = known_keys(cache).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            found = json.loads(line)
            yield str(found["key"]), dict(found["parts"])
