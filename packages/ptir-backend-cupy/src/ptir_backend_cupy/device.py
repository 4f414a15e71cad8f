"""One GPU as the kernel generator uses it: memory, copies, builds, launches, typed errors."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ptir.codegen.api import KernelDevice, Traits
from ptir.errors import DeviceError, DeviceLost, OutOfMemory
from ptir.types import TensorType
from ptir_backend_cupy import matrices
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_cupy.dlpack import lent
from ptir_backend_cupy.errors import typed
from ptir_backend_cupy.launching import TURNS, Copy, Kernel, Replay, grid
from ptir_backend_cupy.nvrtc import Nvrtc

if TYPE_CHECKING:
    import numpy as np

ALIGNMENT: Final = 256
"""What every allocation of CUDA is aligned to."""
STAGED: Final = 16 << 20
"""Bytes of a pinned buffer through which weights go; there are two."""


class Memory:
    """An address on the device, and what keeps it valid."""

    __slots__ = ("address", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.address, self.nbytes, self.owner = address, nbytes, owner


class CupyDevice(KernelDevice):
    """A GPU, a stream that runs in order, one for weights on their way, and one that records."""

    turns = TURNS
    budget = 16 << 30

    def __init__(self, cupy: Any, number: int, compiler: Nvrtc) -> None:
        self._cuda, self._compiler = cupy.cuda, compiler
        self._runtime, self._driver = cupy.cuda.runtime, cupy.cuda.driver
        self._raised = (
            *(self._runtime.CUDARuntimeError, self._driver.CUDADriverError),
            *(cupy.cuda.memory.OutOfMemoryError, MemoryError),
        )
        self._device = cupy.cuda.Device(number)
        self._joined = threading.local()
        self._name = f"cupy:{number}"
        with self._errors("open"):
            found = self._runtime.getDeviceProperties(number)
            self._name = found["name"].decode()
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
            units=found["multiProcessorCount"],
            doubles=True,
            largest=found["totalGlobalMem"],
            alignment=ALIGNMENT,
            identity=f"{compiler.identity} sm_{self.architecture}",
            device_class="gpu",
            group=found["maxThreadsPerBlock"],
            shared=found["sharedMemPerBlock"],
        )

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """On this device; what CuPy raises becomes the errors of the contract."""
        try:
            with self._device:
                self._join()
                yield
        except self._raised as error:
            raise self._typed(action, error) from error

    def _join(self) -> None:
        """Give a new thread the device's context, which the driver's launches look for.

        CUDA makes it current in a thread when that first calls the runtime.
        """
        if not getattr(self._joined, "yes", False):
            self._runtime.memGetInfo()
            self._joined.yes = True

    def _typed(self, action: str, error: Exception) -> DeviceError:
        """The error of the contract; a lost device stays lost."""
        found = typed(action, self._name, error)
        self.lost = self.lost or isinstance(found, DeviceLost)
        return found

    # --- memory ---

    def allocate(self, nbytes: int) -> Memory:
        """Memory from CuPy's pool, a pool of this device's own."""
        if nbytes > self.traits.largest:
            raise OutOfMemory(
                f"cupy: {self._name!r} has {self.traits.largest} bytes, {nbytes} are needed in one"
                " piece; use a smaller batch, context or dtype, or another device"
            )
        with self._errors(f"allocation of {nbytes} bytes"), self.stream:
            held = self._pool.malloc(nbytes)
        return Memory(held.ptr, nbytes, held)

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        """An address further on."""
        return Memory(memory.address + offset, nbytes, memory.owner)

    def borrow(self, array: np.ndarray[Any, Any]) -> None:
        """Kernels do not read the host's memory."""

    def _move(self, to: int, source: int, nbytes: int, kind: int, stream: Any) -> None:
        self._runtime.memcpyAsync(to, source, nbytes, kind, stream.ptr)

    def write(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        """A copy that is waited for."""
        with self._errors("upload"):
            kind = self._runtime.memcpyHostToDevice
            self._move(memory.address, array.ctypes.data, array.nbytes, kind, self.stream)
            self.stream.synchronize()

    def send(self, memory: Memory, array: np.ndarray[Any, Any]) -> object:
        """A copy through pinned buffers on a stream of its own; kernels wait for it, nobody else.

        The array is read while this runs. Memory may have been used by what is still queued, so
        the copy waits for that.
        """
        with self._sending, self._errors("upload"):
            self._uploads.wait_event(self.stream.record())
            kind, source = self._runtime.memcpyHostToDevice, array.ctypes.data
            if self._staging is None:
                made = [_Staging(self._pinned.malloc(STAGED)) for _ in range(2)]
                self._staging = itertools.cycle(made)
            for first in range(0, array.nbytes, STAGED):
                staging, nbytes = next(self._staging), min(STAGED, array.nbytes - first)
                staging.wait()
                ctypes.memmove(staging.held.ptr, source + first, nbytes)
                self._move(memory.address + first, staging.held.ptr, nbytes, kind, self._uploads)
                staging.event = self._uploads.record()
            self.stream.wait_event(self._uploads.record())
        return None

    def read(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        """A copy that is waited for."""
        with self._errors("download"):
            kind = self._runtime.memcpyDeviceToHost
            self._move(array.ctypes.data, memory.address, array.nbytes, kind, self.stream)
            self.stream.synchronize()

    def fetch(self, memory: Memory, array: np.ndarray[Any, Any]) -> Callable[[], object]:
        """A copy into pinned memory; its event is waited for."""
        with self._errors("download"):
            held = self._pinned.malloc(array.nbytes)
            kind = self._runtime.memcpyDeviceToHost
            self._move(held.ptr, memory.address, array.nbytes, kind, self.stream)
            event = self.stream.record()

        def wait() -> None:
            with self._errors("download"):
                event.synchronize()
            ctypes.memmove(array.ctypes.data, held.ptr, array.nbytes)

        return wait

    def copy(self, source: Memory, destination: Memory, nbytes: int) -> None:
        """A copy in the queue."""
        with self._errors("copy"):
            kind = self._runtime.memcpyDeviceToDevice
            self._move(destination.address, source.address, nbytes, kind, self.stream)

    def lent(self, value: Any) -> tuple[Memory, TensorType]:
        """A DLPack object on this device, whose library makes the queue wait for it."""
        with self._errors("import of a tensor"):
            found = lent(value, self.stream.ptr)
        return Memory(found.address, found.type.nbytes, found.capsule), found.type

    # --- kernels ---

    def build(self, source: str) -> Any:
        """A module; ``binary`` gives its machine code."""
        return self._loaded(self._compiler.compiled(source, self.architecture).code)

    def _loaded(self, code: bytes) -> Module:
        with self._errors("loading of machine code"):
            return Module(self._driver.moduleLoadData(code), code)

    def binary(self, built: Module) -> bytes:
        """The machine code."""
        return built.code

    def load(self, source: str, binary: bytes) -> Module | None:
        """A module from machine code, or None where the driver refuses it."""
        try:
            with self._device:
                self._join()
                return Module(self._driver.moduleLoadData(binary), binary)
        except self._raised:
            return None

    def kernel(self, built: Module, name: str, arguments: int) -> Kernel:
        """A function of a module."""
        with self._errors(f"making of kernel {name}"):
            return Kernel(
                self._driver.moduleGetFunction(built.handle, name), name, arguments, built
            )

    def bind(self, kernel: Kernel | Copy, position: int, memory: Memory) -> None:
        """Set an address."""
        kernel.addresses[position] = memory.address

    def binder(self, arguments: Sequence[tuple[Kernel | Copy, int]]) -> Callable[[Memory], None]:
        """Set addresses where they lie."""
        size = ctypes.sizeof(ctypes.c_uint64)
        places = [
            ctypes.c_uint64.from_buffer(kernel.addresses, position * size)
            for kernel, position in arguments
        ]

        def bind(memory: Memory) -> None:
            address = memory.address
            for place in places:
                place.value = address

        return bind

    def copier(self, nbytes: int) -> Copy:
        """A copy in the queue, launched like a kernel."""
        return Copy(nbytes)

    def launch(self, kernel: Kernel | Copy, items: int, members: int = 1) -> None:
        """Queue a kernel, or a copy."""
        with self._errors(f"launch of {kernel.name}"):
            self.queue(kernel, items, members, self.stream)

    def queue(self, kernel: Kernel | Copy, items: int, members: int, stream: Any) -> None:
        """``launch`` on a stream with CuPy's errors, the device being current."""
        if isinstance(kernel, Copy):
            source, target = kernel.addresses
            kind = self._runtime.memcpyDeviceToDevice
            self._move(target, source, kernel.nbytes, kind, stream)
            return
        kernel.items.value = items
        blocks, threads = grid(items, members)
        self._driver.launchKernel(
            *(kernel.function, blocks, 1, 1, threads, 1, 1, 0),
            *(stream.ptr, ctypes.addressof(kernel.given), 0),
        )

    def sequence(self, launches: Sequence[tuple[Any, int, int]]) -> Replay:
        """A list that becomes a CUDA graph when it runs again with the same memory."""
        return Replay(self, launches)

    def recorded(self, queue: Callable[[Any], None]) -> Any:
        """What ``queue`` queues on the stream that it is given, as a CUDA graph; nothing runs.

        What other threads queue meanwhile on the stream of their runs is not recorded.
        """
        with self._recording, self._errors("recording of a graph"), self._recorder:
            self._recorder.begin_capture()
            try:
                queue(self._recorder)
            finally:
                graph = self._recorder.end_capture()
            return graph

    def replay(self, graph: Any) -> None:
        """Queue a graph."""
        with self._errors("launch of a graph"):
            graph.launch(self.stream)

    def in_turn(self, queue: Callable[[Any], None]) -> None:
        """Queue what ``queue`` queues on the stream that it is given."""
        with self._errors("launch"):
            queue(self.stream)

    def finish(self) -> None:
        """Wait for both streams."""
        with self._errors("run"):
            self._uploads.synchronize()
            self.stream.synchronize()


class Module:
    """Loaded machine code. It stays loaded: kernels may be queued when nobody holds them."""

    def __init__(self, handle: int, code: bytes) -> None:
        self.handle, self.code = handle, code


class _Staging:
    """A pinned buffer and the event behind the copy that reads it."""

    def __init__(self, held: Any) -> None:
        self.held, self.event = held, None

    def wait(self) -> None:
        """Until the buffer may be written."""
        if self.event is not None:
            self.event.synchronize()
