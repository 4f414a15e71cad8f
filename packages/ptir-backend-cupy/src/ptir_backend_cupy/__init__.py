"""The CuPy backend of ptir. ``backend`` makes the instance; CuPy is imported when asked for."""

from ptir_backend_cupy.backend import CupyBackend, backend

__all__ = ["CupyBackend", "backend"]
