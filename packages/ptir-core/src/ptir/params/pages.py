"""The pages of a mapped file behind an array: read ahead of their use, given back behind it."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ptir.params.source import Array

_AHEAD: Final = getattr(mmap, "MADV_WILLNEED", None)
_BEHIND: Final = getattr(mmap, "MADV_DONTNEED", None)
"""Nothing where the system takes no advice (Windows): it keeps and evicts pages by itself."""


class DiskWatch:
    """Whether files are read from the disk: what the system has in memory needs no read-ahead."""

    def __init__(self) -> None:
        self._blocks = -1

    def reads(self) -> bool:
        """Whether this process had blocks read since the last call; at first, that it may have."""
        if sys.platform == "win32":
            return False
        import resource

        before, self._blocks = self._blocks, resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        return before != self._blocks


def mapping_of(array: Array) -> mmap.mmap | None:
    """The mapped file that an array's memory is; None where it is no file's."""
    import numpy as np

    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    mapping = owner.obj if isinstance(owner, memoryview) else owner
    return mapping if isinstance(mapping, mmap.mmap) else None


@dataclass(frozen=True)
class MappedPages:
    """Bytes of a mapped file, from the begin of a page on."""

    mapping: mmap.mmap
    start: int
    length: int

    @classmethod
    def of(cls, array: Array) -> MappedPages | None:
        """Those behind an array; None where its memory is no mapped file's."""
        import numpy as np

        mapping = mapping_of(array)
        if mapping is None:
            return None
        first = np.frombuffer(mapping, np.uint8, 1).ctypes.data
        begin = int(array.ctypes.data) - first
        start = begin // mmap.PAGESIZE * mmap.PAGESIZE
        return cls(mapping, start, begin + array.nbytes - start)

    def read_ahead(self) -> None:
        """Have the system read them while something else goes on."""
        self._advise(_AHEAD)

    def drop(self) -> None:
        """Take them out of this process; they come back, from the file, when touched."""
        self._advise(_BEHIND)

    def _advise(self, advice: int | None) -> None:
        if advice is not None and self.length:
            self.mapping.madvise(advice, self.start, self.length)
