"""The processor as the kernel generator uses it: memory, builds, and lists of launches."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
import weakref
from _ctypes import dlclose
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from ptir.codegen.api import (
    Addressed,
    AddressedDevice,
    AddressedKernel,
    Block,
    CommandBuffer,
    Traits,
    built,
    mapping_of,
    note_cut,
    processor,
)
from ptir.errors import CompileError, DeviceError, OutOfMemory
from ptir_backend_c import processors
from ptir_backend_c.compiler import Compiler
from ptir_backend_c.dialect import PlainC
from ptir_backend_c.prelude import source

if TYPE_CHECKING:
    import mmap

    import numpy as np

ALIGNMENT: Final = 64


class Built:
    """A loaded shared object; unloaded with the last kernel that came from it."""

    def __init__(self, binary: bytes) -> None:
        self.binary = binary
        with tempfile.TemporaryDirectory(prefix="ptir-c-") as folder:
            file = Path(folder, "kernels.so")
            file.write_bytes(binary)
            self.library = ctypes.CDLL(str(file))
        self.close = weakref.finalize(self, dlclose, self.library._handle)
        self.close.atexit = False

    def address(self, name: str) -> int:
        """Where a function is; raises ``AttributeError``."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0


class Kernel(AddressedKernel):
    """A function of a shared object, which the kernel keeps loaded."""

    __slots__ = ("address", "source")

    def __init__(self, address: int, buffers: int, source: object) -> None:
        super().__init__(max(1, buffers))
        self.address, self.source = address, source


class Launch(ctypes.Structure):
    """``launch`` of pool.c."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("items", ctypes.c_int),
    )


class Runtime:
    """The functions of pool.c and a pool of threads."""

    def __init__(self, built: Built, threads: int) -> None:
        self.built = built
        built.close.detach()  # its threads are in it
        library, pointer, number = built.library, ctypes.c_void_p, ctypes.c_int
        library.pool_new.restype, library.pool_new.argtypes = pointer, (number, pointer)
        library.pool_free.restype, library.pool_free.argtypes = None, (pointer,)
        library.pool_run.argtypes = (pointer, pointer, number, pointer)
        library.pool_share.argtypes = (pointer, pointer, pointer, number, number)
        self._run, self._share = library.pool_run, library.pool_share
        library.file_watch.argtypes = (pointer, ctypes.c_size_t)
        library.file_is_cut.argtypes = library.file_forget.argtypes = (number,)
        self._files: WeakKeyDictionary[mmap.mmap, int] = WeakKeyDictionary()
        self.copy = built.address("pool_copy")
        found = processors.places(threads)
        numbers = (ctypes.c_int * threads)(*found) if found else None
        self.pool = library.pool_new(threads, numbers)
        if not self.pool:
            raise OutOfMemory(f"c: no memory for a pool of {threads} threads")
        weakref.finalize(self, library.pool_free, self.pool).atexit = False

    def watch(self, mapping: mmap.mmap) -> None:
        """Survive the end of a mapped file that is cut while kernels read it."""
        if mapping in self._files:
            return
        import numpy as np

        whole, library = np.frombuffer(mapping, np.uint8), self.built.library
        number = library.file_watch(whole.ctypes.data, whole.nbytes)
        self._files[mapping] = number
        if number >= 0:
            weakref.finalize(mapping, library.file_forget, number).atexit = False

    def _check(self, problem: int) -> None:
        if problem == errno.ESTALE:
            found = [(file, number) for file, number in self._files.items() if number >= 0]
            note_cut(file for file, number in found if self.built.library.file_is_cut(number))
            return  # a file that another pool reads
        if problem:
            said = os.strerror(problem)
            raise DeviceError(f"c: threads cannot be started: {said}; set PTIR_C_THREADS=1")

    def walk(self, listed: Any, count: int) -> None:
        """Run launches one after the other; raises ``DeviceError``.

        Where a file was cut that they read: ``CheckpointError``.
        """
        self._check(self._run(self.pool, listed, count, None))

    def timed(self, listed: Any, count: int) -> list[float]:
        """``walk``, and the seconds of each launch."""
        seconds = (ctypes.c_double * count)()
        self._check(self._run(self.pool, listed, count, seconds))
        return [*seconds]

    def share(self, listed: Any, ends: Any, phases: int, workers: int) -> None:
        """Run a list that workers share, phase by phase; raises as ``walk``."""
        self._check(self._share(self.pool, listed, ends, phases, workers))


class Launches(CommandBuffer):
    """A list of launches for every run; the kernels' buffers are one block, copied for each."""

    def __init__(
        self, runtime: Runtime, launches: Sequence[tuple[Kernel, int, int]], runs: int
    ) -> None:
        self._runtime, self._count = runtime, len(launches)
        self._kernels = [kernel for kernel, _, _ in launches]
        self._block = Block(self._kernels, runs)
        held, nbytes = self._block.held, self._block.nbytes
        listed = [
            Launch(kernel.address, held + slot * nbytes + offset, workgroups)
            for slot in range(runs)
            for (kernel, workgroups, _), offset in zip(launches, self._block.offsets, strict=True)
        ]
        self._listed = (Launch * len(listed))(*listed)

    def bind_slot(self, slot: int) -> None:
        """Copy the block of addresses."""
        self._block.hold(slot)

    def submit(self, count: int) -> None:
        """The pool does the launches one after the other, all threads the workgroups of each."""
        self._runtime.walk(self._listed, self._count * count)

    def timed(self) -> Sequence[float] | None:
        """One run, in the same call, with a look at the clock around every launch."""
        return self._runtime.timed(self._listed, self._count)


class SharedLaunches(Launches):
    """Launches of workers, with the number that each does in each phase; runs follow on."""

    def __init__(
        self,
        runtime: Runtime,
        launches: Sequence[tuple[Kernel, int, int]],
        runs: int,
        counts: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(runtime, launches, runs)
        ends = [*accumulate([count for phase in counts for count in phase] * runs)]
        self._ends = (ctypes.c_int * len(ends))(*ends)
        self._phases, self._workers = len(counts), len(counts[0])

    def submit(self, count: int) -> None:
        """The pool does them phase by phase, each thread the launches of a worker."""
        self._runtime.share(self._listed, self._ends, self._phases * count, self._workers)

    def timed(self) -> Sequence[float] | None:
        """Launches of several workers at once have no time of their own."""
        return None


class CDevice(AddressedDevice):
    """The processor, a compiler for it, and a pool of threads."""

    runs_per_call = 16

    def __init__(self, compiler: Compiler, threads: int) -> None:
        self._compiler = compiler
        self.dialect = PlainC()
        if not compiler.is_native:
            self.dialect.dots = frozenset()
            self.dialect.permutes_bytes = self.dialect.permutes_words = False
        self.traits = Traits(
            compute_units=threads,
            has_f64=True,
            max_allocation_bytes=memory_of_the_machine(),
            alignment=ALIGNMENT,
            identity=compiler.identity,
            device_class=processor.class_of(processor.register_lanes(self.dialect.lanes)),
        )
        self.partitioning = processors.sharing()
        self.not_partitioned_reason = f"off; {processors.SHARED}=cheaper or always turns it on"
        self._runtime = Runtime(built(self, source("pool.c")), threads)

    def allocate(self, nbytes: int) -> Addressed:
        """Aligned memory in an array of bytes.

        Nothing here may have a ``__del__``: memory that dies in a cycle of references is given
        back to the pool while the cycle is taken apart, and lives on.
        """
        import numpy as np

        if nbytes > self.traits.max_allocation_bytes:
            raise OutOfMemory(
                f"c: {nbytes} bytes are needed in one piece and the machine has"
                f" {self.traits.max_allocation_bytes}; use a smaller batch, context or dtype"
            )
        try:
            block = np.empty(nbytes + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise OutOfMemory(
                f"c: allocation of {nbytes} bytes failed; use a smaller batch, context or dtype"
            ) from error
        address = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        return Addressed(address, nbytes, block)

    def borrow(self, array: np.ndarray[Any, Any]) -> Addressed | None:
        """The array's own memory; copied only where its elements are not aligned."""
        if not array.flags.aligned:
            return None
        mapping = mapping_of(array)
        if mapping is not None:
            self._runtime.watch(mapping)
        return Addressed(_address(array), array.nbytes, array)

    def write(self, memory: Addressed, array: np.ndarray[Any, Any]) -> None:
        """A copy of the host's memory, for nothing is ever queued."""
        ctypes.memmove(memory.address, _address(array), array.nbytes)

    def read(self, memory: Addressed, array: np.ndarray[Any, Any]) -> None:
        """The same, the other way."""
        ctypes.memmove(_address(array), memory.address, array.nbytes)

    def copy(self, source: Addressed, destination: Addressed, nbytes: int) -> None:
        """The same, within the memory."""
        ctypes.memmove(destination.address, source.address, nbytes)

    def build(self, source: str) -> Built:
        """A shared object, loaded; raises ``CompileError``."""
        options = ("-pthread",) if "pthread.h" in source else ()
        binary = self._compiler.shared_object(source, *options)
        try:
            return Built(binary)
        except OSError as error:
            raise CompileError(
                f"c: a built kernel does not load: {error}; if {tempfile.gettempdir()} forbids"
                " programs, set TMPDIR to a folder that allows them"
            ) from error

    def binary(self, built: Built) -> bytes:
        """The file of the shared object."""
        return built.binary

    def load(self, source: str, binary: bytes) -> Built | None:
        """The shared object, or None where the system does not take it."""
        try:
            return Built(binary)
        except OSError:
            return None

    def kernel(self, built: Built, name: str, arguments: int) -> Kernel:
        """A function of the shared object, which is loaded as long as it has kernels."""
        return Kernel(built.address(name), arguments, built)

    def copy_kernel(self, nbytes: int) -> Kernel:
        """``pool_copy`` of pool.c, which takes the number of bytes in place of a third address."""
        made = Kernel(self._runtime.copy, 3, self._runtime)
        made.addresses[2] = nbytes
        return made

    def launch(self, kernel: Kernel, workgroups: int, workgroup_size: int = 1) -> None:
        """Run it; the workgroups are done when this returns."""
        assert workgroup_size == 1, "the dialect has no work-groups"
        alone = Launch(kernel.address, ctypes.addressof(kernel.addresses), workgroups)
        self._runtime.walk(ctypes.byref(alone), 1)

    def record(self, launches: Sequence[tuple[Kernel, int, int]]) -> Launches:
        """A list that the pool runs in one call."""
        return Launches(self._runtime, launches, self.runs_per_call)

    def record_partitioned(
        self, launches: Sequence[tuple[Kernel, int, int]], counts: Sequence[Sequence[int]]
    ) -> SharedLaunches:
        """One call in which every thread does the launches of a worker."""
        return SharedLaunches(self._runtime, launches, self.runs_per_call, counts)

    def finish(self) -> None:
        """Everything is done when a call returns."""


def _address(array: np.ndarray[Any, Any]) -> int:
    """Where an array's elements are, without the Python code behind ``array.ctypes``."""
    found: int = array.__array_interface__["data"][0]
    return found


def memory_of_the_machine() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
