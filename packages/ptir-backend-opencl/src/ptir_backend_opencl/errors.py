"""What PyOpenCL raises, as the errors of the contract: which code means what, and build logs."""

from __future__ import annotations

import re
from typing import Final

import pyopencl as cl

from ptir.errors import CompileError, DeviceError, DeviceLost, OutOfMemory

_CODES: Final = cl.status_code
FULL: Final = frozenset(
    {
        _CODES.MEM_OBJECT_ALLOCATION_FAILURE,
        _CODES.OUT_OF_RESOURCES,
        _CODES.OUT_OF_HOST_MEMORY,
        _CODES.INVALID_BUFFER_SIZE,
    }
)
LOST: Final = frozenset(
    {_CODES.DEVICE_NOT_AVAILABLE, _CODES.INVALID_COMMAND_QUEUE, _CODES.INVALID_CONTEXT}
)
RAISED: Final = (cl.Error, MemoryError)
"""What a PyOpenCL call raises when the driver or the host fails."""

_KERNEL: Final = re.compile(
    r"__kernel\b[^({;]*?(?:__attribute__\s*\(\(.*?\)\)\)?\s*)?void\s+(\w+)", re.S
)
_PLACE: Final = re.compile(r":(\d+):\d+:")


def typed(action: str, device: str, error: Exception) -> DeviceError:
    """The error of the contract for what happened during ``action`` on ``device``."""
    code = getattr(error, "code", None)
    said = str(error).strip() or type(error).__name__
    message = f"opencl: {action} on {device!r} failed: {said}"
    if code in FULL or isinstance(error, MemoryError):
        return OutOfMemory(f"{message}; use a smaller batch, context or dtype")
    if code in LOST:
        return DeviceLost(
            f"{message}; what it held is gone, and the next program opens it again; if that fails"
            " too, check the driver with `ptir doctor`"
        )
    return DeviceError(message)


def failed_build(source: str, device: str, error: Exception) -> CompileError:
    """The build log's first error with the kernel that it is in."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = next(
        (line for line in lines if "error" in line.lower()[:200] and _PLACE.search(line)), ""
    )
    first = first or next((line for line in lines if "error:" in line), lines[0] if lines else "")
    kernel = _kernel_at(source, _PLACE.search(first))
    where = f" in kernel {kernel!r}" if kernel else ""
    return CompileError(f"opencl: build for {device!r} failed{where}: {first}")


def _kernel_at(source: str, place: re.Match[str] | None) -> str | None:
    """The kernel whose text holds a line of ``source``."""
    if place is None:
        return None
    line = int(place[1])
    name = None
    for found in _KERNEL.finditer(source):
        if source.count("\n", 0, found.start()) + 1 > line:
            break
        name = found[1]
    return name
