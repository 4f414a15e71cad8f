"""Buffers: core's record of who owns a backend handle and whether it may still be used."""

from __future__ import annotations

import threading
from typing import Any, Final

from ptir.backend.checked import downloaded
from ptir.backend.contract import Target
from ptir.errors import CaptureError
from ptir.types import TensorType

_CLAIMS: Final = threading.Lock()


class Buffer:
    """A handle on a device with its type and state.

    ``aliased`` buffers (borrowed host memory, or memory handed out through DLPack) are copied
    before a donation would overwrite them. A consumed buffer says what consumed it when used.
    """

    __slots__ = ("_handle", "aliased", "gone", "target", "type")

    def __init__(
        self, handle: Any, type: TensorType, target: Target, aliased: bool = False
    ) -> None:
        self._handle = handle
        self.type = type
        self.target = target
        self.aliased = aliased
        self.gone = ""

    @property
    def handle(self) -> Any:
        """The backend's handle; raises ``CaptureError`` once the buffer was consumed."""
        if self.gone:
            raise CaptureError(f"tensor {self.type} cannot be used: {self.gone}")
        return self._handle

    def consume(self, reason: str) -> None:
        """Give the handle up: later uses raise with ``reason``."""
        self._handle = None
        self.gone = reason

    def claim(self, reason: str) -> Any:
        """The handle, given up to the caller: of several threads one gets it, others an error."""
        with _CLAIMS:
            handle = self.handle
            self.consume(reason)
        return handle

    def download(self) -> Any:
        """The elements as a NumPy array; raises ``DeviceError`` where they have another type."""
        return downloaded(self.target.backend, self.handle, self.target.device, self.type)
