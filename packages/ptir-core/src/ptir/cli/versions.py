"""Versions of distributions, read from their metadata."""

from __future__ import annotations

from importlib import metadata


def version_of(distribution: str) -> str | None:
    """The installed version of ``distribution``, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
