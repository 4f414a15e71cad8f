"""A driver's errors as those of the contract: what its numbers mean, and where a build failed."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from ptir.backend.kernel import KernelDevice, Memory
from ptir.errors import DeviceError, DeviceLost, OutOfMemory


@dataclass(frozen=True)
class Failures:
    """What a driver raises, and which of its numbers mean more than that something failed."""

    backend: str
    number: str
    """The attribute of an error that holds its number."""
    full: frozenset[int]
    """Numbers that say that memory is used up."""
    lost: frozenset[int]
    """Numbers after which the device, or the process's context of it, is of no use."""
    after: str
    """What comes after a lost device."""
    limit: str = "holds at most {0} bytes in one piece, {1} are needed"
    """What is said of a device whose largest allocation, of ``{0}`` bytes, is less than ``{1}``."""

    def typed(self, action: str, device: str, error: Exception) -> DeviceError:
        """The error of the contract for what happened during ``action`` on ``device``."""
        said = str(error).strip() or type(error).__name__
        message = f"{self.backend}: {action} on {device!r} failed: {said}"
        number = getattr(error, self.number, None)
        if number in self.full or isinstance(error, MemoryError):
            return OutOfMemory(f"{message}; use a smaller batch, context or dtype")
        if number in self.lost:
            return DeviceLost(
                f"{message}; what it held is gone, and {self.after}; if that fails too, check the"
                " driver with `ptir doctor`"
            )
        return DeviceError(message)


class DriverDevice(KernelDevice):
    """A device behind a driver whose library raises errors of its own."""

    failures: Failures
    raised: tuple[type[Exception], ...]
    """What the library raises when the driver or the host fails."""
    name: str
    """What the driver calls the device."""

    @abstractmethod
    def fresh(self, nbytes: int) -> Memory:
        """Memory as the library allocates it, which may fail with its own errors."""

    def allocate(self, nbytes: int) -> Memory:
        """Fresh memory; the driver is not asked for more than it allocates in one piece."""
        if nbytes > self.traits.max_allocation_bytes:
            limit = self.failures.limit.format(self.traits.max_allocation_bytes, nbytes)
            raise OutOfMemory(
                f"{self.failures.backend}: {self.name!r} {limit}; use a smaller batch, context or"
                " dtype, or another device"
            )
        with self.errors(f"allocation of {nbytes} bytes"):
            return self.fresh(nbytes)

    def current(self) -> AbstractContextManager[object]:
        """What makes calls of this thread reach the device."""
        return nullcontext()

    @contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """Turn what the library raises meanwhile into the errors of the contract."""
        try:
            with self.current():
                yield
        except self.raised as error:
            raise self.typed(action, error) from error

    def typed(self, action: str, error: Exception) -> DeviceError:
        """The error of the contract; a lost device stays lost."""
        found = self.failures.typed(action, self.name, error)
        self.lost = self.lost or isinstance(found, DeviceLost)
        return found


def in_kernel(source: str, place: re.Match[str] | None, begins: re.Pattern[str]) -> str:
    """`` in kernel 'name'`` for the line of ``source`` that is the first group of ``place``.

    ``begins`` finds where each kernel begins. Nothing where no place is known, or no kernel there.
    """
    line, name = int(place[1]) if place else 0, ""
    for found in begins.finditer(source):
        if source.count("\n", 0, found.start()) + 1 > line:
            break
        name = f" in kernel {found[1]!r}"
    return name
