"""The backend: the GPUs that CuPy finds, opened when asked for, and advice where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ptir.backend import Device
from ptir.backend.contract import Finding, Handle
from ptir.codegen.api import DeviceBuffer, KernelBackend, KernelDevice
from ptir.errors import BackendUnavailable, UnsupportedError
from ptir.types import TensorType
from ptir_backend_cupy import dlpack, nvrtc, platforms

REMEDIES = (
    ("cudaErrorInsufficientDriver", "the driver is older than this CuPy: update it, or install the"
     " CuPy of its CUDA version"),
    ("libcuda", "install NVIDIA's driver, or use another backend"),
    ("NVRTC is not found", "pip install nvidia-cuda-nvrtc"),
)  # fmt: skip
"""What an error holds, and what to do then."""

LOADED = 16
"""Bytes that kernels load at once, at addresses that they divide."""
SHARED_FORMATS = frozenset(
    (*("f16", "f32", "f64", "bool"), *("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"))
)
"""Element types that other libraries are given where they lie."""


class CupyBackend(KernelBackend):
    """Every NVIDIA GPU that CuPy finds."""

    name = "cupy"
    remedies = REMEDIES
    correctly_rounded = frozenset(("div", "sqrt", "reciprocal"))

    @cached_property
    def _cupy(self) -> Any:
        return platforms.cupy()

    def devices(self) -> Sequence[Device]:
        """In CUDA's order; raises ``BackendUnavailable`` with the line to run."""
        runtime = self._cupy.cuda.runtime
        found = [runtime.getDeviceProperties(n) for n in range(runtime.getDeviceCount())]
        return tuple(
            Device(
                number,
                properties["name"].decode(),
                "integrated" if properties["integrated"] else "discrete",
                f"sm_{properties['major']}{properties['minor']},"
                f" {properties['totalGlobalMem'] / 2**30:.0f} GiB",
            )
            for number, properties in enumerate(found)
        )

    def capabilities(self, device: Device) -> Mapping[str, Any]:
        """What CUDA says about the device, under names that stay."""
        cuda = self._cupy.cuda
        found = cuda.runtime.getDeviceProperties(device.index)
        return {
            "platform": "CUDA",
            "driver": cuda.runtime.driverGetVersion(),
            "runtime": cuda.runtime.runtimeGetVersion(),
            "nvrtc": ".".join(map(str, nvrtc.find().version)),
            "architecture": f"sm_{found['major']}{found['minor']}",
            "fp16": True,
            "fp64": True,
            "compute_units": found["multiProcessorCount"],
            "local_memory_bytes": found["sharedMemPerBlockOptin"],
            "memory_bytes": found["totalGlobalMem"],
        }

    def findings(self) -> Sequence[Finding]:
        """The driver, CuPy and the compiler."""
        driver = platforms.driver()
        said = str(driver) if driver else "none"
        found = [Finding("driver", said, "" if driver else platforms.NO_DRIVER)]
        listed = ", ".join(f"{name} {version}" for name, version in platforms.wheels().items())
        fix = "" if listed or driver is None else driver.advice
        found.append(Finding("CuPy", listed or "not installed", fix))
        try:
            compiler = nvrtc.find()
            version = ".".join(map(str, compiler.version))
            found.append(Finding("NVRTC", f"{version}, {compiler.place}"))
        except BackendUnavailable as error:
            found.append(Finding("NVRTC", "not found", str(error) if driver else ""))
        return found

    def open(self, device: Device) -> KernelDevice:
        """A stream on the device, and the compiler."""
        from ptir_backend_cupy.device import CupyDevice

        return CupyDevice(self._cupy, device.index, nvrtc.find())

    def adopt(self, value: Any, device: Device) -> tuple[Handle, TensorType] | None:
        """The memory itself; a copy where kernels could not load 16 bytes at once."""
        if not dlpack.lies_on(value, device.index):
            return None
        opened = self.opened(device)
        memory, type = opened.device.lent(value)  # type: ignore[attr-defined]
        if not type.size:
            return opened.pool.allocate(type), type
        handle = DeviceBuffer(memory, type, opened.pool, host=memory.owner)
        return self.copy(handle, device) if memory.address % LOADED else handle, type

    def export(self, handle: Handle, device: Device) -> Any:
        """A CuPy array over the handle's memory; it keeps the handle."""
        if handle.memory is None or handle.type.dtype.name not in SHARED_FORMATS:
            if handle.type.dtype.name in SHARED_FORMATS:
                return self.download(handle, device)
            raise UnsupportedError(
                f"cupy: {handle.type.dtype} has no format that other libraries take; cast it to f32"
            )
        opened = self.opened(device).device
        opened.finish()  # whoever reads it uses a stream of their own
        cupy = self._cupy
        held = cupy.cuda.UnownedMemory(
            handle.memory.address, handle.memory.nbytes, handle, device.index
        )
        pointer = cupy.cuda.MemoryPointer(held, 0)
        return cupy.ndarray(handle.type.shape, handle.type.dtype.numpy, pointer)


def backend() -> CupyBackend:
    """The instance; CuPy is looked for when devices are asked for."""
    platforms.require_cupy()
    return CupyBackend()
