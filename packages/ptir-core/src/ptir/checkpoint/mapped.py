"""A file mapped for reading: its bytes as arrays that copy nothing, and pages given back."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

from ptir.errors import CheckpointError
from ptir.params.mapped_files import check_whole, mapped
from ptir.params.source import Array


class MappedFile:
    """The bytes of a regular file; raises ``CheckpointError`` where it cannot be mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.buffer = mapped(file.fileno(), path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be mapped: {error}") from error

    def __len__(self) -> int:
        """Bytes that are mapped."""
        return len(self.buffer)

    def raw(self, start: int, length: int, what: str) -> Array:
        """Some of the bytes, u8[length], read-only; ``what`` lies there.

        Raises ``CheckpointError`` when the file was cut since it was mapped: touching what is gone
        would end the process.
        """
        import numpy as np

        check_whole((self.buffer,), what)
        return np.frombuffer(self.buffer, np.uint8, length, start)

    def drop_pages(self, start: int, length: int) -> None:
        """Give back the memory behind some of the bytes; they are read again when touched."""
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        if sys.platform != "win32" and length:
            self.buffer.madvise(mmap.MADV_DONTNEED, page, start + length - page)
