"""What CuPy raises, as the errors of the contract: which number means what."""

from __future__ import annotations

from typing import Final

from ptir.errors import DeviceError, DeviceLost, OutOfMemory

FULL: Final = frozenset((2,))
"""Numbers (CUDA's, the same for runtime and driver) that say that memory is used up."""
LOST: Final = frozenset(
    (
        *(46, 79, 100, 101),  # no device, or not for us
        *(201, 709),  # no context
        *(214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721),  # it failed
        *(4, 999),  # the driver is being taken down, or does not know
    )
)
"""Numbers after which the context of the process is of no use."""


def typed(action: str, device: str, error: Exception) -> DeviceError:
    """The error of the contract for what happened during ``action`` on ``device``."""
    said = str(error).strip() or type(error).__name__
    message = f"cupy: {action} on {device!r} failed: {said}"
    number = getattr(error, "status", None)
    if number in FULL or isinstance(error, MemoryError):
        return OutOfMemory(f"{message}; use a smaller batch, context or dtype")
    if number in LOST:
        return DeviceLost(
            f"{message}; what it held is gone, and CUDA gives a process no second context: start a"
            " new one; if that fails too, check the driver with `ptir doctor`"
        )
    return DeviceError(message)
