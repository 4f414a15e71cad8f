"""The C backend of ptir: plain C through the compiler of the system. ``backend`` makes it."""

from ptir_backend_c.backend import CBackend, backend

__all__ = ["CBackend", "backend"]
