"""One OpenCL device as the kernel generator uses it: memory, builds, launches, typed errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from ptir.backend.kernel import KernelDevice, Traits
from ptir.errors import CompileError, DeviceError, DeviceLost, OutOfMemory
from ptir_backend_opencl.dialect import OpenCLC

if TYPE_CHECKING:
    import numpy as np

FULL = {
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.INVALID_BUFFER_SIZE,
}
LOST = {cl.status_code.DEVICE_NOT_AVAILABLE, cl.status_code.INVALID_COMMAND_QUEUE}


class OpenCLDevice(KernelDevice):
    """A context, a queue that runs in order, and what the driver says about the device."""

    def __init__(self, device: Any) -> None:
        self._name = device.name.strip()
        with self._errors("open"):
            self._context = cl.Context([device])
            self._queue = cl.CommandQueue(self._context)
        self._options = ["-cl-std=CL1.2", "-w"]
        if device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT:
            self._options.append("-cl-fp32-correctly-rounded-divide-sqrt")
        doubles = "cl_khr_fp64" in device.extensions.split()
        platform = device.platform
        self.dialect = OpenCLC(doubles)
        self.traits = Traits(
            units=device.max_compute_units,
            doubles=doubles,
            largest=device.max_mem_alloc_size,
            alignment=max(64, device.mem_base_addr_align // 8),
            identity=" ".join(
                (
                    *(platform.name, platform.version, self._name, device.driver_version),
                    *self._options,
                )
            ),
        )
        self._shares = bool(device.type & cl.device_type.CPU) or device.host_unified_memory

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Turn what PyOpenCL raises into the errors of the contract."""
        try:
            yield
        except (cl.Error, MemoryError) as error:
            raise self._typed(action, error) from error

    def _typed(self, action: str, error: Exception) -> DeviceError:
        code = getattr(error, "code", None)
        message = f"opencl: {action} on {self._name!r} failed: {str(error).strip()}"
        if code in FULL or isinstance(error, MemoryError):
            return OutOfMemory(f"{message}; use a smaller batch, context or dtype")
        return (DeviceLost if code in LOST else DeviceError)(message)

    def allocate(self, nbytes: int) -> Any:
        """A buffer that kernels read and write."""
        with self._errors(f"allocation of {nbytes} bytes"):
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)

    def part(self, memory: Any, offset: int, nbytes: int) -> Any:
        """A sub-buffer."""
        with self._errors("sub-buffer"):
            return memory.get_sub_region(offset, nbytes)

    def borrow(self, array: np.ndarray[Any, Any]) -> Any | None:
        """The host's memory on devices that share it."""
        if not self._shares or array.ctypes.data % self.traits.alignment:
            return None
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        with self._errors("use of host memory"):
            return cl.Buffer(self._context, flags, hostbuf=array)

    def write(self, memory: Any, array: np.ndarray[Any, Any]) -> None:
        """A blocking write."""
        with self._errors("upload"):
            cl.enqueue_copy(self._queue, memory, _bytes(array))

    def read(self, memory: Any, array: np.ndarray[Any, Any]) -> None:
        """A blocking read."""
        with self._errors("download"):
            cl.enqueue_copy(self._queue, _bytes(array), memory)

    def copy(self, source: Any, destination: Any, nbytes: int) -> None:
        """A copy in the queue."""
        with self._errors("copy"):
            cl.enqueue_copy(self._queue, destination, source, byte_count=nbytes)

    def build(self, source: str) -> Any:
        """A built program; the driver's log is in the error."""
        try:
            return cl.Program(self._context, source).build(self._options)
        except cl.RuntimeError as error:
            raise CompileError(f"opencl: build for {self._name!r} failed: {error}") from error

    def binary(self, built: Any) -> bytes | None:
        """What the driver made of the source."""
        found: bytes = built.get_info(cl.program_info.BINARIES)[0]
        return found or None

    def load(self, source: str, binary: bytes) -> Any | None:
        """The program again; drivers refuse what another version of them wrote."""
        try:
            program = cl.Program(self._context, self._context.devices, [binary])
            return program.build(self._options)
        except (cl.Error, ValueError):
            return None

    def kernel(self, built: Any, name: str, arguments: int) -> Any:
        """A kernel object of its own, so that its arguments stay bound."""
        kernel = cl.Kernel(built, name)
        assert kernel.num_args == arguments
        return kernel

    def bind(self, kernel: Any, position: int, memory: Any) -> None:
        """Set one argument."""
        kernel.set_arg(position, memory)

    def launch(self, kernel: Any, items: int) -> None:
        """Queue ``items`` work-groups of one."""
        cl.enqueue_nd_range_kernel(self._queue, kernel, (items,), (1,))

    def finish(self) -> None:
        """Wait for the queue."""
        with self._errors("run"):
            self._queue.finish()


def _bytes(array: np.ndarray[Any, Any]) -> Any:
    """The array's bytes, whatever its dtype."""
    import numpy as np

    return array.reshape(-1).view(np.uint8)
