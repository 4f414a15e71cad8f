"""What was timed, on disk: one JSON file below the cache folder (``PTIR_CACHE_DIR``).

A record says which implementation of a functional was fastest for a class of calls on one device
and version of the kernels, with the times of all. A file that is damaged is named, set aside, and
nothing is remembered then.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ptir.backend.disk_cache import digest_key
from ptir.backend.folders import ENVIRONMENT, cache_folder, replace_file
from ptir.errors import UsageError

FORMAT: Final = 2
ASIDE: Final = ".damaged"
"""The end of the name under which a damaged file is kept."""


@dataclass(frozen=True)
class Seconds:
    """How long one implementation takes: the median of several rounds, and half of them lie in."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class TuningRecord:
    """One remembered choice, with the seconds of every implementation that was timed.

    ``decided`` is whether the choice was faster than the default beyond the spread of both; else
    ``implementation`` is the default.
    """

    functional: str
    call: str
    backend: str
    device: str
    version: str
    implementation: str
    default: str
    decided: bool
    seconds: Mapping[str, Seconds]
    refused: tuple[str, ...] = ()
    """Implementations that could not be run."""

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What the choice was made for."""
        return (self.functional, self.call, self.backend, self.device, self.version)

    @property
    def speedup(self) -> float:
        """How many times as fast the choice is as the default."""
        return self.seconds[self.default].median / self.seconds[self.implementation].median


def tuning_records_file() -> Path:
    """The file of the tuning records."""
    return cache_folder() / "implementations.json"


def tuning_records() -> list[TuningRecord]:
    """All records, oldest first; raises ``UsageError`` for a file that is damaged.

    One that another version wrote holds none.
    """
    path = tuning_records_file()
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    return [*_read(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)]


@lru_cache(maxsize=2)
def _read(path: Path, *state: int) -> tuple[TuningRecord, ...]:
    """The records of a file that is in this state."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    try:
        held = json.loads(text)
        if held["format"] != FORMAT:
            return ()
        return tuple(map(_record, held["choices"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: not a list of timed choices ({error})") from None


def _record(entry: dict[str, Any]) -> TuningRecord:
    seconds = {name: Seconds(*map(float, each)) for name, each in entry["seconds"].items()}
    found = TuningRecord(**{**entry, "seconds": seconds, "refused": (*entry["refused"],)})
    if not {found.implementation, found.default} <= seconds.keys():
        raise ValueError(f"{found.functional}: no times of {found.implementation!r}")
    if not all(0 < each.median < float("inf") for each in seconds.values()):
        raise ValueError(f"{found.functional}: times are numbers above 0")
    return found


def records_state() -> str:
    """A digest of the file: other choices have another one."""
    try:
        return digest_key(tuning_records_file().read_bytes().hex())
    except OSError:
        return ""


_revision = 0


def choices_revision() -> int:
    """How often this process has tuned a model or reset choices.

    A plan that follows timed choices of an older revision is made anew.
    """
    return _revision


def choices_changed() -> None:
    """Let every plan that follows timed choices be made anew the next time it is asked for."""
    global _revision
    _revision += 1


def remembered() -> list[TuningRecord]:
    """All records; a damaged file is set aside with a warning, and nothing is remembered."""
    try:
        return tuning_records()
    except UsageError as error:
        said = set_aside(tuning_records_file())
        warnings.warn(f"{error}; {said}, and its implementations are timed again", stacklevel=2)
        return []


def set_aside(path: Path) -> str:
    """Take a damaged file out of the way; what was done with it, for a warning."""
    aside = path.with_name(path.name + ASIDE)
    try:
        os.replace(path, aside)
    except OSError as error:
        return f"it cannot be moved ({error.strerror})"
    return f"it is {aside.name} now"


def remember(made: TuningRecord, limit: int) -> None:
    """Keep a record instead of one for the same, at most ``limit`` of a functional."""
    others = [record for record in remembered() if record.key != made.key]
    write_records(_limited([*others, made], limit, made.functional))


def _limited(kept: Sequence[TuningRecord], limit: int, functional: str) -> list[TuningRecord]:
    """``kept``, oldest first, with at most the ``limit`` newest records of one functional."""
    of_it = [record for record in kept if record.functional == functional]
    dropped = {record.key for record in of_it[:-limit]}
    return [record for record in kept if record.key not in dropped]


def write_records(kept: Sequence[TuningRecord]) -> None:
    """Replace the file in one step, so that a reader sees the old list or the new one."""
    path = tuning_records_file()
    text = json.dumps({"format": FORMAT, "choices": [_entry(record) for record in kept]}, indent=1)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        said = f"{path}: cannot be written ({error.strerror}); the choice is not remembered"
        warnings.warn(f"{said}; set {ENVIRONMENT} to a folder of yours", stacklevel=2)


def _entry(record: TuningRecord) -> dict[str, Any]:
    seconds = {name: [s.low, s.median, s.high] for name, s in record.seconds.items()}
    return {**asdict(record), "seconds": seconds}
