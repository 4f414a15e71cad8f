"""The OpenCL backend of ptir. ``backend`` makes the instance; PyOpenCL is imported when asked."""

from ptir_backend_opencl.backend import OpenCLBackend, backend

__all__ = ["OpenCLBackend", "backend"]
