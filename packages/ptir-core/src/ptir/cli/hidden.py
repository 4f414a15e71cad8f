"""What hides installed backends and plugins, for ``ptir backends`` and ``ptir doctor``."""

from __future__ import annotations

from collections.abc import Iterable

from ptir import plugins
from ptir.backend import registry
from ptir.backend.import_places import Hiding, hiding


def hidings() -> dict[str, Hiding]:
    """What hides the module of a backend or plugin, by ``backend NAME`` and ``plugin NAME``."""
    listed = {"backend": registry.listed(), "plugin": plugins.listed()}
    return {
        f"{kind} {entry.name}": found
        for kind, entries in listed.items()
        for entry in entries
        if (found := hiding(entry)) is not None
    }


def unsaid(said: Iterable[str]) -> dict[str, Hiding]:
    """The hidings that no text tells of: who fails to load says itself what hides its module."""
    texts = tuple(said)
    found = hidings().items()
    return {what: hiding for what, hiding in found if not any(str(hiding) in t for t in texts)}
