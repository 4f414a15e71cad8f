"""The reference backend of ptir: NumPy, one instruction at a time. ``backend`` is the instance."""

from ptir_backend_ref.backend import RefBackend

__all__ = ["RefBackend", "backend"]

backend = RefBackend()
