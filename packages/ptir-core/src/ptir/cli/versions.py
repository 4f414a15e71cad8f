"""What the metadata of installed distributions says: their versions, and who edits them here."""

from __future__ import annotations

from importlib import metadata

from ptir.backend import import_places


def version_of(distribution: str) -> str | None:
    """The installed version of ``distribution``, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def edited_folder(distribution: str) -> str | None:
    """The folder that ``distribution`` is installed from by ``pip install -e``, else None."""
    try:
        return import_places.edited_folder(metadata.distribution(distribution))
    except metadata.PackageNotFoundError:
        return None
