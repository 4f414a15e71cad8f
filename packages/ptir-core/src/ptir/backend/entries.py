"""Entry points: what installed distributions offer, listed without importing any of them.

Backends and plugins are both found here, and every import of one happens under ``guard``, so that
a broken distribution becomes a ``PluginError`` with its cause and nothing else.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from ptir.errors import PluginError, PtirError

OFFICIAL: Final = ("c", "cupy", "opencl", "ref")
"""The backends of this project."""
OWN: Final = frozenset(
    ("ptir-core", "ptir-testsuite", *(f"ptir-backend-{name}" for name in OFFICIAL))
)
"""The distributions of this project; those of others are strangers."""


@dataclass(frozen=True)
class Entry:
    """One entry point and the distribution that declares it.

    ``problem`` says why a distribution's declaration cannot be read; such an entry goes by the
    distribution's name and never loads.
    """

    name: str
    distribution: str
    version: str
    value: str
    problem: str = ""
    point: metadata.EntryPoint | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


def listed(group: str) -> tuple[Entry, ...]:
    """The entries of ``group`` ordered by name, without importing what they name.

    Where two copies of a distribution are on the path, the first one counts.
    """
    found: dict[str, list[Entry]] = {}
    for distribution in metadata.distributions():
        text = distribution.read_text("entry_points.txt")
        if text and group in text:
            name = str(distribution.name)
            found.setdefault(normalized(name), _declared(distribution, name, group))
    entries = (entry for declared in found.values() for entry in declared)
    return tuple(sorted(entries, key=lambda e: (e.name, e.distribution)))


def normalized(name: str) -> str:
    """A distribution's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _declared(distribution: metadata.Distribution, name: str, group: str) -> list[Entry]:
    try:
        with guard(f"entry_points.txt of {name}"):
            points = distribution.entry_points.select(group=group)
    except PluginError as error:
        return [Entry(name, name, str(distribution.version), "", str(error))]
    version = str(distribution.version)
    return [Entry(p.name, name, version, p.value, point=p) for p in points]


def load(entry: Entry) -> Any:
    """Import what ``entry`` names; raises ``PluginError`` with the cause when that fails."""
    if entry.point is None:
        raise PluginError(entry.problem)
    with guard(f"import of {entry.value}"):
        return entry.point.load()


def claimed_twice(entries: Iterable[Entry]) -> dict[str, str]:
    """For each name that several entries claim, the sentence that names them all."""
    entries = tuple(entries)
    counts = Counter(entry.name for entry in entries)
    return {
        name: f"{name!r} is claimed by {_listing(e for e in entries if e.name == name)};"
        " uninstall all but one"
        for name, count in counts.items()
        if count > 1
    }


def _listing(entries: Iterable[Entry]) -> str:
    return " and ".join(f"{e.distribution} {e.version}" for e in entries)


@contextmanager
def guard(action: str) -> Iterator[None]:
    """Turn whatever third-party code raises, ``SystemExit`` included, into ``PluginError``.

    Errors of ptir's own family and ``KeyboardInterrupt`` pass. What the code prints goes to
    stderr, because stdout carries only results.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (PtirError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"{action} failed: {cause(error)}") from error


def cause(error: BaseException) -> str:
    """An exception on one line: its type and the first line of its message."""
    first = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def foreign_ptir() -> str | None:
    """What to do about the distribution called ``ptir``, or None when it is not installed.

    It is another project (a terminal image renderer) whose top-level ``ptir`` package overwrites
    the one of ptir-core.
    """
    try:
        version = metadata.version("ptir")
    except metadata.PackageNotFoundError:
        return None
    return (
        f"the distribution 'ptir' {version} is another project and shares the package name 'ptir'"
        " with ptir-core, so each overwrites the other's files; run `pip uninstall ptir`, then"
        " `pip install --force-reinstall --no-deps ptir-core`"
    )
