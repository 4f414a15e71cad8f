"""The kernel generator: programs to fused kernels in any C-like dialect.

See docs/internals/codegen.md.
"""

from ptir.codegen.backend import KernelBackend
from ptir.codegen.launching.memory import DeviceBuffer

__all__ = ["DeviceBuffer", "KernelBackend"]
