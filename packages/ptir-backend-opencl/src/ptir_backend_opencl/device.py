"""One OpenCL device as the kernel generator uses it: memory, builds, launches, typed errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from ptir.codegen.api import DriverDevice, Traits
from ptir_backend_opencl import dots, platforms
from ptir_backend_opencl.dialect import OpenCLC
from ptir_backend_opencl.errors import FAILURES, RAISED, failed_build

if TYPE_CHECKING:
    import numpy as np


class OpenCLDevice(DriverDevice):
    """A context, two queues that run in order, and what the driver says about the device.

    One queue is of runs; parameters that are fetched meanwhile come through the other.
    """

    failures, raised = FAILURES, RAISED

    def __init__(self, device: Any) -> None:
        self.name = device.name.strip()
        with self.errors("open"):
            self._context = cl.Context([device])
            self._queue = cl.CommandQueue(self._context)
            self._copies = cl.CommandQueue(self._context)
        self._latest: Any = None
        self._options = ["-cl-std=CL1.2", "-w"]
        if device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT:
            self._options.append("-cl-fp32-correctly-rounded-divide-sqrt")
        doubles = "cl_khr_fp64" in platforms.extensions(device)
        maker = device.platform
        names = (maker.name, maker.version, self.name, device.driver_version)
        self.dialect = OpenCLC(
            doubles,
            platforms.yields_threads(device),
            platforms.own_functions(device),
            platforms.subgroup_size(device),
            platforms.misreads_local_ids(device),
        )
        self.traits = Traits(
            compute_units=device.max_compute_units,
            has_f64=doubles,
            max_allocation_bytes=platforms.largest_allocation(device),
            alignment=max(64, device.mem_base_addr_align // 8),
            max_persistent_buffers=platforms.chain_memories(device),
            identity=" ".join((*names, *self._options)),
            device_class=platforms.class_of(device),
            max_workgroup_size=platforms.work_group_size(device),
            shared_memory_bytes=device.local_mem_size,
        )
        self._shares = platforms.shares_host_memory(device)
        self.dialect.dots = dots.tried(self, dots.listed(device))

    def fresh(self, nbytes: int) -> Any:
        """A buffer that kernels read and write."""
        return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)

    def subspan(self, memory: Any, offset: int, nbytes: int) -> Any:
        """A sub-buffer, which keeps the whole."""
        with self.errors("sub-buffer"):
            return memory.get_sub_region(offset, nbytes)

    def borrow(self, array: np.ndarray[Any, Any]) -> Any | None:
        """An aligned array itself, on devices that share the host's memory."""
        if not self._shares or array.ctypes.data % self.traits.alignment:
            return None
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        with self.errors("use of host memory"):
            return cl.Buffer(self._context, flags, hostbuf=array)

    def write(self, memory: Any, array: np.ndarray[Any, Any]) -> None:
        """A blocking write."""
        with self.errors("upload"):
            cl.enqueue_copy(self._queue, memory, _bytes(array))

    def send(self, memory: Any, array: np.ndarray[Any, Any]) -> object:
        """A write that does not wait; PyOpenCL's event would, once nobody holds it."""
        with self.errors("upload"):
            event: object = cl.enqueue_copy(self._queue, memory, _bytes(array), is_blocking=False)
            self._queue.flush()
        return event

    def send_beside(
        self, memory: Any, array: np.ndarray[Any, Any]
    ) -> tuple[Callable[[], object], Callable[[], object]]:
        """A write in the queue of copies, behind a marker in that of runs."""
        with self.errors("upload"):
            before = cl.enqueue_marker(self._queue)
            self._queue.flush()
        events: list[Any] = []

        def begin() -> None:
            with self.errors("upload"):
                given = _bytes(array)
                events.append(
                    cl.enqueue_copy(
                        self._copies, memory, given, is_blocking=False, wait_for=[before]
                    )
                )
                self._copies.flush()

        def join() -> None:
            with self.errors("upload"):
                cl.enqueue_barrier(self._queue, wait_for=events)

        return begin, join

    def read(self, memory: Any, array: np.ndarray[Any, Any]) -> None:
        """A blocking read."""
        with self.errors("download"):
            cl.enqueue_copy(self._queue, _bytes(array), memory)

    def fetch(self, memory: Any, array: np.ndarray[Any, Any]) -> Callable[[], object]:
        """A read that does not wait; its event does."""
        with self.errors("download"):
            event = cl.enqueue_copy(self._queue, _bytes(array), memory, is_blocking=False)
            self._queue.flush()

        def wait() -> None:
            with self.errors("download"):
                event.wait()

        return wait

    def copy(self, source: Any, destination: Any, nbytes: int) -> None:
        """A copy in the queue."""
        with self.errors("copy"):
            self._latest = cl.enqueue_copy(self._queue, destination, source, byte_count=nbytes)

    def build(self, source: str) -> Any:
        """A built program; the first error of the driver's log is in the error."""
        try:
            return self._quietly_built(cl.Program(self._context, source))
        except cl.RuntimeError as error:
            raise failed_build(source, self.name, error) from error

    def binary(self, built: Any) -> bytes | None:
        """The driver's binary of a program."""
        with self.errors("reading of a binary"):
            (found,) = built.get_info(cl.program_info.BINARIES)
        return bytes(found) or None

    def load(self, source: str, binary: bytes) -> Any | None:
        """A program from its binary; drivers refuse what another version of them wrote."""
        try:
            program = cl.Program(self._context, self._context.devices, [binary])
            return self._quietly_built(program)
        except (cl.Error, ValueError):
            return None

    def _quietly_built(self, program: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)  # some drivers log every build
            return program.build(self._options)

    def kernel(self, built: Any, name: str, arguments: int) -> Any:
        """A kernel object of its own, so that its arguments stay bound."""
        with self.errors(f"making of kernel {name}"):
            kernel = cl.Kernel(built, name)
        assert kernel.num_args == arguments
        return kernel

    def bind(self, kernel: Any, position: int, memory: Any) -> None:
        """Set one argument; the driver remembers it until it is set again."""
        try:
            kernel.set_arg(position, memory)
        except RAISED as error:
            action = f"argument {position} of kernel {kernel.function_name}"
            raise self.typed(action, error) from error

    def launch(self, kernel: Any, workgroups: int, workgroup_size: int = 1) -> None:
        """Queue ``workgroups``, of one thread where kernels are serial."""
        try:
            self._latest = cl.enqueue_nd_range_kernel(
                self._queue, kernel, (workgroups * workgroup_size,), (workgroup_size,)
            )
        except RAISED as error:
            action = f"launch of kernel {kernel.function_name}"
            raise self.typed(action, error) from error

    def timed(self, queue: Sequence[Callable[[], object]]) -> tuple[float, ...]:
        """What the driver's events say of each: its end less its begin, on the device's clock.

        From the first time on the queue is one that keeps times, which costs some drivers a little.
        """
        keeps = cl.command_queue_properties.PROFILING_ENABLE
        with self.errors("timing"):
            if not self._queue.properties & keeps:
                before, self._queue = self._queue, cl.CommandQueue(self._context, properties=keeps)
                before.finish()
        found: list[Any] = []
        for call in queue:
            call()
            found.append(self._latest)
        self.finish()
        with self.errors("timing"):
            return tuple(1e-9 * (one.profile.end - one.profile.start) for one in found)

    def finish(self) -> None:
        """Wait until the queues are empty."""
        with self.errors("run"):
            self._copies.finish()
            self._queue.finish()


def _bytes(array: np.ndarray[Any, Any]) -> Any:
    """The array's bytes, whatever its dtype."""
    import numpy as np

    return array.reshape(-1).view(np.uint8)
