"""What the metadata of installed distributions says: their versions, and who edits them here."""

from __future__ import annotations

import json
from importlib import metadata


def version_of(distribution: str) -> str | None:
    """The installed version of ``distribution``, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def edited_folder(distribution: str) -> str | None:
    """The folder that ``distribution`` is installed from by ``pip install -e``, else None."""
    try:
        said = metadata.distribution(distribution).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    origin = json.loads(said) if said else {}
    if not origin.get("dir_info", {}).get("editable"):
        return None
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    return url2pathname(urlsplit(origin["url"]).path)
