"""What PyOpenCL raises, as the errors of the contract: which code means what, and build logs."""

from __future__ import annotations

import re
from typing import Final

import pyopencl as cl

from ptir.codegen.api import Failures, in_kernel
from ptir.errors import CompileError

_CODES: Final = cl.status_code
FAILURES: Final = Failures(
    "opencl",
    number="code",
    full=frozenset(
        (
            *(_CODES.MEM_OBJECT_ALLOCATION_FAILURE, _CODES.OUT_OF_RESOURCES),
            *(_CODES.OUT_OF_HOST_MEMORY, _CODES.INVALID_BUFFER_SIZE),
        )
    ),
    lost=frozenset(
        (_CODES.DEVICE_NOT_AVAILABLE, _CODES.INVALID_COMMAND_QUEUE, _CODES.INVALID_CONTEXT)
    ),
    after="the next program opens it again",
)
RAISED: Final = (cl.Error, MemoryError)
"""What a PyOpenCL call raises when the driver or the host fails."""

_KERNEL: Final = re.compile(
    r"__kernel\b[^({;]*?(?:__attribute__\s*\(\(.*?\)\)\)?\s*)?void\s+(\w+)", re.S
)
_PLACE: Final = re.compile(r":(\d+):\d+:")


def failed_build(source: str, device: str, error: Exception) -> CompileError:
    """The build log's first error with the kernel that it is in."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = next(
        (line for line in lines if "error" in line.lower()[:200] and _PLACE.search(line)), ""
    )
    first = first or next((line for line in lines if "error:" in line), lines[0] if lines else "")
    where = in_kernel(source, _PLACE.search(first), _KERNEL)
    return CompileError(f"opencl: build for {device!r} failed{where}: {first}")
