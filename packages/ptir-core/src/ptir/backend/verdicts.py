"""What became of plugins in their trials, kept on disk: a run tries what is new, and nothing twice.

A verdict holds as long as the distribution's version and files are the same, and until something
is installed beside it. It is kept in ``trials.json`` in the cache folder, the last one for each
plugin of each environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib import machinery
from pathlib import Path
from typing import Final

from ptir.backend import trial
from ptir.backend.entries import Entry, normalized
from ptir.backend.import_places import imported_from
from ptir.backend.record_file import RecordFile

CODE: Final = (*machinery.SOURCE_SUFFIXES, *machinery.EXTENSION_SUFFIXES, ".so", ".dll", ".dylib")
"""The ends of the names of files that a process loads; others may change with every import."""
MOST: Final = 256
"""Verdicts that are kept, the newest; those of what is uninstalled are of no use."""


@dataclass(frozen=True)
class Verdict:
    """Why a plugin ended its process, nothing where it came back, and what it was at that time."""

    state: str
    end: str

    def __post_init__(self) -> None:
        if not (isinstance(self.state, str) and isinstance(self.end, str)):
            raise TypeError(f"not two texts: {self.state!r}, {self.end!r}")


def remembered(entries: tuple[Entry, ...], loader: str) -> dict[Entry, str]:
    """What becomes of strangers among the ``entries``, tried now only where that is not known."""
    chosen = trial.chosen(entries)
    if not chosen:
        return {}
    kept = VERDICTS.read()
    verdicts = {entry: kept.get(_key(entry)) for entry in chosen}
    known = {e: v.end for e, v in verdicts.items() if v is not None and v.state == _state(e)}
    left = tuple(entry for entry in chosen if entry not in known)
    return {**known, **_tried(left, loader, kept)} if left else known


def tried(entries: tuple[Entry, ...], loader: str) -> dict[Entry, str]:
    """What becomes of strangers among the ``entries``, tried now, and remembered."""
    return _tried(entries, loader, VERDICTS.read()) if trial.chosen(entries) else {}


def _tried(
    entries: tuple[Entry, ...], loader: str, kept: Mapping[str, Verdict]
) -> dict[Entry, str]:
    found = trial.verdicts(entries, loader)
    if found:  # what an import has written by itself, compiled modules, belongs to the state
        now = {_key(entry): Verdict(_state(entry), end) for entry, end in found.items()}
        others = {key: verdict for key, verdict in kept.items() if key not in now}
        VERDICTS.write(dict([*others.items(), *now.items()][-MOST:]))
    return found


# --- what was tried ---


def _key(entry: Entry) -> str:
    group = entry.point.group if entry.point else ""
    return " ".join((sys.prefix, group, normalized(entry.distribution), entry.name))


def _state(entry: Entry) -> str:
    """A digest of everything that a verdict depends on."""
    state = blake2b(digest_size=16)
    for text in (sys.version, entry.version, entry.value, *_installed(entry), *_code(entry)):
        state.update(f"{text}\n".encode())
    return state.hexdigest()


def _installed(entry: Entry) -> Iterator[str]:
    """The list of the distribution's files with their digests, and when anything came beside it."""
    distribution = entry.point.dist if entry.point else None
    if distribution is not None:
        yield distribution.read_text("RECORD") or ""
        yield _stated(str(distribution.locate_file("")))


def _code(entry: Entry) -> Iterator[str]:
    """The files of the entry's package as they are now: of an editable one nobody lists them."""
    found = imported_from(entry.value.partition(":")[0].strip())
    if found is None:
        return
    _, place = found
    yield _stated(place)
    if not Path(place).name.startswith("__init__."):
        return
    for folder, inside, names in os.walk(Path(place).parent):
        inside.sort()
        for name in sorted(names):
            if name.endswith(CODE):
                yield _stated(os.path.join(folder, name))


def _stated(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return f"{path} is not there"
    return f"{path} {found.st_size} {found.st_mtime_ns}"


# --- the file ---

VERDICTS: Final = RecordFile(
    "trials",
    Verdict,
    "verdicts of trials",
    unread="plugins are tried again, and it is replaced",
    unwritten="the next run tries plugins again",
)
