"""One GPU as the kernel generator uses it: memory, copies, builds, launches, typed errors."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ptir.codegen.api import Addressed, AddressedDevice, DriverDevice, Traits
from ptir.types import TensorType
from ptir_backend_cupy import matrices
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_cupy.dlpack import import_dlpack
from ptir_backend_cupy.errors import FAILURES
from ptir_backend_cupy.launching import TURNS, Copy, Kernel, Replay, grid
from ptir_backend_cupy.nvrtc import Nvrtc

if TYPE_CHECKING:
    import numpy as np

ALIGNMENT: Final = 256
"""What every allocation of CUDA is aligned to."""
STAGED: Final = 16 << 20
"""Bytes of a pinned buffer through which weights go; there are two."""


class CupyDevice(AddressedDevice, DriverDevice):
    """A GPU, a stream that runs in order, one for weights on their way, and one that records."""

    failures = FAILURES
    runs_per_call = TURNS
    budget = 16 << 30

    def __init__(self, cupy: Any, number: int, compiler: Nvrtc) -> None:
        self._cuda, self._compiler = cupy.cuda, compiler
        self._runtime, self._driver = cupy.cuda.runtime, cupy.cuda.driver
        self.raised = (
            *(self._runtime.CUDARuntimeError, self._driver.CUDADriverError),
            *(cupy.cuda.memory.OutOfMemoryError, MemoryError),
        )
        self._device = cupy.cuda.Device(number)
        self._joined = threading.local()
        self.name = f"cupy:{number}"
        with self.errors("open"):
            found = self._runtime.getDeviceProperties(number)
            self.name = found["name"].decode()
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self._uploads = cupy.cuda.Stream(non_blocking=True)
            self._recorder = cupy.cuda.Stream(non_blocking=True)
            self._pool = cupy.cuda.MemoryPool()
            self._pinned = cupy.cuda.PinnedMemoryPool()
        self._staging: Iterator[_Staging] | None = None
        self._sending, self._recording = threading.Lock(), threading.Lock()
        self.architecture = 10 * found["major"] + found["minor"]
        self.dialect = CudaC(matrices=self.architecture >= matrices.ARCHITECTURE)
        self.traits = Traits(
            compute_units=found["multiProcessorCount"],
            has_f64=True,
            max_allocation_bytes=found["totalGlobalMem"],
            alignment=ALIGNMENT,
            identity=f"{compiler.identity} sm_{self.architecture}",
            device_class="gpu",
            max_workgroup_size=found["maxThreadsPerBlock"],
            shared_memory_bytes=found["sharedMemPerBlock"],
        )

    @contextmanager
    def current(self) -> Iterator[None]:
        """Calls of this thread reach the device, in its context."""
        with self._device:
            self._join()
            yield

    def _join(self) -> None:
        """Give a new thread the device's context, which the driver's launches look for.

        CUDA makes it current in a thread when that first calls the runtime.
        """
        if not getattr(self._joined, "yes", False):
            self._runtime.memGetInfo()
            self._joined.yes = True

    # --- memory ---

    def fresh(self, nbytes: int) -> Addressed:
        """Memory of a CuPy pool of this device's own."""
        with self.stream:
            held = self._pool.malloc(nbytes)
        return Addressed(held.ptr, nbytes, held)

    def borrow(self, array: np.ndarray[Any, Any]) -> None:
        """Kernels do not read the host's memory."""

    def _move(self, kind: str, to: int, source: int, nbytes: int, stream: Any) -> None:
        """Queue a copy; ``kind`` is as in the names of CUDA's kinds, such as ``HostToDevice``."""
        number = getattr(self._runtime, f"memcpy{kind}")
        self._runtime.memcpyAsync(to, source, nbytes, number, stream.ptr)

    def write(self, memory: Addressed, array: np.ndarray[Any, Any]) -> None:
        """A copy that is waited for."""
        with self.errors("upload"):
            source = array.ctypes.data
            self._move("HostToDevice", memory.address, source, array.nbytes, self.stream)
            self.stream.synchronize()

    def send(self, memory: Addressed, array: np.ndarray[Any, Any]) -> object:
        """A copy through pinned buffers on a stream of its own; kernels wait for it, nobody else.

        The array is read while this runs. The memory may be used by what is still queued, so
        the copy waits for that.
        """
        begin, join = self.send_beside(memory, array)
        begin()
        join()
        return None

    def send_beside(
        self, memory: Addressed, array: np.ndarray[Any, Any]
    ) -> tuple[Callable[[], object], Callable[[], object]]:
        """``send`` in two: the copy, and what has the stream of runs wait for it."""
        with self.errors("upload"):
            before = self.stream.record()
        copied: list[Any] = []

        def begin() -> None:
            with self._sending, self.errors("upload"):
                self._uploads.wait_event(before)
                self._staged(memory.address, array)
                copied.append(self._uploads.record())

        def join() -> None:
            with self.errors("upload"):
                self.stream.wait_event(copied[0])

        return begin, join

    def _staged(self, to: int, array: np.ndarray[Any, Any]) -> None:
        """Queue the copy of an array through the pinned buffers, which reads it before it ends."""
        source = array.ctypes.data
        if self._staging is None:
            made = [_Staging(self._pinned.malloc(STAGED)) for _ in range(2)]
            self._staging = itertools.cycle(made)
        for first in range(0, array.nbytes, STAGED):
            staging, nbytes = next(self._staging), min(STAGED, array.nbytes - first)
            staging.wait()
            ctypes.memmove(staging.held.ptr, source + first, nbytes)
            self._move("HostToDevice", to + first, staging.held.ptr, nbytes, self._uploads)
            staging.event = self._uploads.record()

    def read(self, memory: Addressed, array: np.ndarray[Any, Any]) -> None:
        """A copy that is waited for."""
        with self.errors("download"):
            to = array.ctypes.data
            self._move("DeviceToHost", to, memory.address, array.nbytes, self.stream)
            self.stream.synchronize()

    def fetch(self, memory: Addressed, array: np.ndarray[Any, Any]) -> Callable[[], object]:
        """A copy into pinned memory; its event is waited for."""
        with self.errors("download"):
            held = self._pinned.malloc(array.nbytes)
            self._move("DeviceToHost", held.ptr, memory.address, array.nbytes, self.stream)
            event = self.stream.record()

        def wait() -> None:
            with self.errors("download"):
                event.synchronize()
            ctypes.memmove(array.ctypes.data, held.ptr, array.nbytes)

        return wait

    def copy(self, source: Addressed, destination: Addressed, nbytes: int) -> None:
        """A copy in the queue."""
        with self.errors("copy"):
            to = destination.address
            self._move("DeviceToDevice", to, source.address, nbytes, self.stream)

    def lent(self, value: Any) -> tuple[Addressed, TensorType]:
        """A DLPack object on this device, whose library makes the queue wait for it."""
        with self.errors("import of a tensor"):
            found = import_dlpack(value, self.stream.ptr)
        return Addressed(found.address, found.type.nbytes, found.capsule), found.type

    # --- kernels ---

    def build(self, source: str) -> Any:
        """A module; ``binary`` gives its machine code."""
        return self._loaded(self._compiler.compiled(source, self.architecture).code)

    def _loaded(self, code: bytes) -> Module:
        with self.errors("loading of machine code"):
            return Module(self._driver.moduleLoadData(code), code)

    def binary(self, built: Module) -> bytes:
        """The machine code."""
        return built.code

    def load(self, source: str, binary: bytes) -> Module | None:
        """A module from machine code, or None where the driver refuses it."""
        try:
            with self.current():
                return Module(self._driver.moduleLoadData(binary), binary)
        except self.raised:
            return None

    def kernel(self, built: Module, name: str, arguments: int) -> Kernel:
        """A function of a module, with addresses of its own."""
        with self.errors(f"making of kernel {name}"):
            return Kernel(
                self._driver.moduleGetFunction(built.handle, name), name, arguments, built
            )

    def copy_kernel(self, nbytes: int) -> Copy:
        """A copy in the queue, launched like a kernel."""
        return Copy(nbytes)

    def launch(self, kernel: Kernel | Copy, workgroups: int, workgroup_size: int = 1) -> None:
        """Queue a kernel, or a copy, on the stream of runs."""
        with self.errors(f"launch of {kernel.name}"):
            self.queue(kernel, workgroups, workgroup_size, self.stream)

    def queue(
        self, kernel: Kernel | Copy, workgroups: int, workgroup_size: int, stream: Any
    ) -> None:
        """``launch`` on a stream with CuPy's errors, the device being current."""
        if isinstance(kernel, Copy):
            source, target = kernel.addresses
            self._move("DeviceToDevice", target, source, kernel.nbytes, stream)
            return
        kernel.items.value = workgroups
        blocks, threads = grid(workgroups, workgroup_size)
        self._driver.launchKernel(
            *(kernel.function, blocks, 1, 1, threads, 1, 1, 0),
            *(stream.ptr, ctypes.addressof(kernel.given), 0),
        )

    def record(self, launches: Sequence[tuple[Any, int, int]]) -> Replay:
        """A list that becomes a CUDA graph when it runs again with the same memory."""
        return Replay(self, launches)

    def recorded(self, queue: Callable[[Any], None]) -> Any:
        """What ``queue`` queues on the stream that it is given, as a CUDA graph; nothing runs.

        What other threads queue meanwhile on the stream of their runs is not recorded.
        """
        with self._recording, self.errors("recording of a graph"), self._recorder:
            self._recorder.begin_capture()
            try:
                queue(self._recorder)
            finally:
                graph = self._recorder.end_capture()
            return graph

    def replay(self, graph: Any) -> None:
        """Queue a graph."""
        with self.errors("launch of a graph"):
            graph.launch(self.stream)

    def in_turn(self, queue: Callable[[Any], None]) -> None:
        """Queue what ``queue`` queues on the stream that it is given."""
        with self.errors("launch"):
            queue(self.stream)

    def timed(self, queue: Sequence[Callable[[], object]]) -> tuple[float, ...]:
        """What lies between events before and behind each, on the device's clock.

        Where a kernel ends before the host has queued the next one, that one's time begins early.
        """

        def mark() -> Any:
            with self.errors("timing"):
                return self.stream.record()

        marks = [mark()]
        for call in queue:
            call()
            marks.append(mark())
        self.finish()
        with self.errors("timing"):
            passed = self._cuda.get_elapsed_time
            return tuple(1e-3 * passed(*pair) for pair in itertools.pairwise(marks))

    def finish(self) -> None:
        """Wait for both streams."""
        with self.errors("run"):
            self._uploads.synchronize()
            self.stream.synchronize()


class Module(NamedTuple):
    """Loaded machine code. It stays loaded: kernels may be queued when nobody holds them."""

    handle: int
    code: bytes


class _Staging:
    """A pinned buffer and the event behind the copy that reads it."""

    def __init__(self, held: Any) -> None:
        self.held, self.event = held, None

    def wait(self) -> None:
        """Until the buffer may be written."""
        if self.event is not None:
            self.event.synchronize()
