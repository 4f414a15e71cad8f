"""The cache folder, defined once: where it is, and how files in it are replaced.

Everything in it can be computed again. Each kind of content has a place of its own: kernels of
``ptir.codegen`` in ``kernels`` and its measured tiles in ``tiles.json``, timed choices of
``ptir.passes`` in ``implementations.json`` and the models that follow them in ``tuned.json``,
packed weights of ``ptir.runtime`` in ``weights``, what keys of entries are made of in ``keys``,
what became of plugins in ``trials.json``, the bandwidth of memory in ``bandwidths.json``,
FLOPs that were reached in ``flops.json``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from ptir.errors import UsageError

ENVIRONMENT: Final = "PTIR_CACHE_DIR"
"""The environment variable that names another folder."""

PARTIAL_SUFFIX: Final = ".part"
"""The end of the name of a file that is being written."""


def cache_folder() -> Path:
    """Where ptir keeps what it can compute again: ``PTIR_CACHE_DIR``, else the platform's place."""
    if chosen := os.environ.get(ENVIRONMENT):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "ptir/Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/ptir"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ptir"


def require_writable(lost: str) -> None:
    """Raise ``UsageError`` where no file can be made in the cache folder; ``lost`` says what is."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        said = f"{folder}: cannot be written ({error.strerror}), and {lost} would be lost"
        raise UsageError(f"{said}; set {ENVIRONMENT} to a folder of yours") from None


def replace_file(path: Path, content: bytes) -> None:
    """Write ``content`` in one step: whoever reads sees the old file or the new one, whole.

    Processes may write the same path at the same time; the last one wins. Raises ``OSError`` and
    leaves nothing behind then.
    """
    with replacing(path) as part:
        part.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that is at ``path`` once it is written; see ``replace_file``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=PARTIAL_SUFFIX, delete=False) as part:
        try:
            yield part.file
            part.close()
            os.replace(part.name, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(part.name)
            raise
