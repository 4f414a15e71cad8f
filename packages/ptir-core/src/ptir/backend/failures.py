"""A driver's errors as those of the contract: what its numbers mean, and where a build failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from ptir.backend.kernel import KernelDevice
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


def kernel_at(source: str, line: int, begins: re.Pattern[str]) -> str | None:
    """The kernel whose text holds a line of ``source``; ``begins`` finds where each begins."""
    name = None
    for found in begins.finditer(source):
        if source.count("\n", 0, found.start()) + 1 > line:
            break
        name = found[1]
    return name
