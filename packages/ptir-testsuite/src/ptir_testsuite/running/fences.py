"""Poison where results will lie, and fences around it: memory that tells on a backend.

Before a run, three handles are uploaded for every output: a fence, poison of the output's type, a
fence. Then the poison is let go. A backend that hands freed memory out again gives the output what
the poison left, so an element that nobody writes keeps a wrong value; one that places tensors side
by side in memory of its own puts a fence where a write goes that is too far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ptir.backend import Target
from ptir.types import TensorType
from ptir_testsuite.oracles.floats import Array

PATTERNS: Final = (0xA5, 0x5A)
"""The bytes of poison in the first and in the second run: what is left of it differs."""

LENGTH: Final = 16  # elements of a fence


def poison(type: TensorType, pattern: int) -> Array:
    """An array of ``type`` whose elements are no result of anything: all bytes are ``pattern``."""
    if type.dtype.kind == "bool":
        return np.full(type.shape, pattern == PATTERNS[0])
    return np.full(type.nbytes, pattern, np.uint8).view(type.dtype.numpy).reshape(type.shape)


def soil(nbytes: int, pattern: int) -> None:
    """Leave a pattern in host memory of this size, which the next array of the size may get."""
    np.full(nbytes, pattern, np.uint8)


class Fences:
    """The fences of one run; raises whatever ``upload`` and ``download`` raise."""

    def __init__(self, types: Sequence[TensorType], target: Target, pattern: int) -> None:
        self._target = target
        wanted = [type for type in types if type.nbytes]
        self._wanted = np.full(LENGTH, int.from_bytes(bytes([pattern]) * 4, signed=True), np.int32)
        self._handles: list[Any] = []
        let_go: list[Any] = []
        for type in wanted:
            self._raise_one()
            let_go.append(target.backend.upload(poison(type, pattern), target.device))
            self._raise_one()
        del let_go

    def _raise_one(self) -> None:
        self._handles.append(self._target.backend.upload(self._wanted, self._target.device))

    def broken(self) -> str:
        """What a write outside of every tensor did to a fence, or nothing."""
        backend, device = self._target.backend, self._target.device
        for handle in self._handles:
            found = np.asarray(backend.download(handle, device))
            wrong = np.flatnonzero(found != self._wanted) if found.size == LENGTH else [0]
            if len(wrong):
                return f"{found[wrong[0]]:#x} at [{wrong[0]}]" if found.size else "nothing"
        return ""
