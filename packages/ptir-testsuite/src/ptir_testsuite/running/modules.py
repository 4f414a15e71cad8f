"""Modules that define ops beside the standard ones: what ``--import`` names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from ptir.errors import UsageError


def import_all(names: Iterable[str]) -> None:
    """Import them in order; raises ``UsageError`` for one that is not there or fails."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise UsageError(
                f"--import {name}: {type(error).__name__}: {error}; name a module that can be"
                " imported from here"
            ) from error
