"""A device on paper: programs are fused, written and planned for it, and nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptir.backend.kernel import KernelDevice

if TYPE_CHECKING:
    import numpy as np


class PaperDevice(KernelDevice):
    """A device that is not there; a subclass gives it ``traits`` and a ``dialect``.

    A built file is its text and a kernel is its name: who overrides ``build`` or ``launch`` sees
    what a driver would. Memory holds nothing; each piece is an object, which pools tell apart.
    """

    def allocate(self, nbytes: int) -> object:
        """A piece of memory that holds nothing."""
        return object()

    def subspan(self, memory: object, offset: int, nbytes: int) -> object:
        """Another one."""
        return object()

    def borrow(self, array: np.ndarray[Any, Any]) -> Any:
        """The array, so that weights are not copied."""
        return array

    def write(self, memory: object, array: np.ndarray[Any, Any]) -> None:
        """Nothing is kept."""

    def read(self, memory: object, array: np.ndarray[Any, Any]) -> None:
        """Zeros: what is not a number would end a generation."""
        array[...] = 0

    def copy(self, source: object, destination: object, nbytes: int) -> None:
        """Nothing is moved."""

    def build(self, source: str) -> str:
        """The text."""
        return source

    def kernel(self, built: str, name: str, arguments: int) -> str:
        """The name."""
        return name

    def bind(self, kernel: str, position: int, memory: object) -> None:
        """Nothing is bound, for nothing is launched."""

    def launch(self, kernel: str, workgroups: int, workgroup_size: int = 1) -> None:
        """Nothing is launched."""

    def finish(self) -> None:
        """Nothing was queued."""
