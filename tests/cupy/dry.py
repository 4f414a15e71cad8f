"""A device that compiles for GPUs and runs nothing: what its kernels take is what is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ptir.backend import Device
from ptir.backend.kernel import KernelDevice, Traits
from ptir.codegen import KernelBackend
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_cupy.nvrtc import Cubin, Nvrtc


class DryDevice(KernelDevice):
    """Traits of an H200; every source file is compiled for each architecture."""

    def __init__(self, compiler: Nvrtc, architectures: Sequence[int]) -> None:
        self.compiler, self.architectures = compiler, architectures
        self.dialect = CudaC()
        self.traits = Traits(
            units=132,
            doubles=True,
            largest=141 << 30,
            alignment=256,
            identity="dry",
            device_class="gpu",
            group=1024,
            shared=48 << 10,
        )
        self.sources: list[str] = []
        self.made: dict[int, list[Cubin]] = {number: [] for number in architectures}
        self.launched: list[tuple[str, int, int]] = []

    def allocate(self, nbytes: int) -> Any:
        return SimpleNamespace(nbytes=nbytes)

    def part(self, memory: Any, offset: int, nbytes: int) -> Any:
        return SimpleNamespace(nbytes=nbytes)

    def borrow(self, array: np.ndarray[Any, Any]) -> None:
        return None

    def write(self, memory: Any, array: np.ndarray[Any, Any]) -> None:
        """Nothing is computed."""

    def read(self, memory: Any, array: np.ndarray[Any, Any]) -> None:
        array[...] = 0

    def copy(self, source: Any, destination: Any, nbytes: int) -> None:
        """Nothing is computed."""

    def build(self, source: str) -> str:
        self.sources.append(source)
        for number, made in self.made.items():
            made.append(self.compiler.compiled(source, number))
        return source

    def kernel(self, built: Any, name: str, arguments: int) -> str:
        return name

    def bind(self, kernel: Any, position: int, memory: Any) -> None:
        """Nothing is launched."""

    def launch(self, kernel: Any, items: int, members: int = 1) -> None:
        self.launched.append((kernel, items, members))

    def finish(self) -> None:
        """Nothing is queued."""


class DryBackend(KernelBackend):
    name = "dry"

    def __init__(self, compiler: Nvrtc, architectures: Sequence[int]) -> None:
        super().__init__()
        self.kernels = DryDevice(compiler, architectures)

    def devices(self) -> Sequence[Device]:
        return (Device(0, "no device", "discrete"),)

    def open(self, device: Device) -> DryDevice:
        return self.kernels
