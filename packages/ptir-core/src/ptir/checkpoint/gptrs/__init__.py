"""The files of gpt.rs: checkpoints (``GPTRSCHK``) and tensor archives (``GPTRSTEN``), version 2."""

from pathlib import Path

from ptir.checkpoint.gptrs.files import read_archive, write_archive
from ptir.checkpoint.gptrs.index import ARCHIVE, CHECKPOINT, begins_as
from ptir.checkpoint.gptrs.opening import Opened, open_gptrs

__all__ = [
    "Opened",
    "begins_as_gptrs",
    "is_archive",
    "open_gptrs",
    "read_archive",
    "write_archive",
]


def begins_as_gptrs(path: Path) -> bool:
    """Whether a file is a checkpoint of gpt.rs, by its first bytes."""
    return begins_as(path, CHECKPOINT)


def is_archive(path: Path) -> bool:
    """Whether a file is a tensor archive of gpt.rs, by its first bytes."""
    return begins_as(path, ARCHIVE)
