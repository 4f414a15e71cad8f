"""CUDA text on the host: a kernel device that has the system's C++ compiler build it.

A test tool. It proves what the dialect and the schedules say, not what a GPU does. The whole corpus
against it, from the root of the repository:

    PYTHONPATH=tests/cupy/host ptir-conformance run --backend cuda-host
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import re
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from ptx import emulated

from ptir.backend import Device
from ptir.codegen.api import KernelBackend, KernelDevice, Traits
from ptir.errors import BackendUnavailable, CompileError, DeviceError
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_cupy.launching import grid

HERE: Final = Path(__file__).parent
COMPILER: Final = "g++"
OPTIONS: Final = (
    *("-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-march=native", "-fno-strict-aliasing"),
    # sigsetjmp and fibres: nothing may be kept in registers across them that is not saved
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error", "-ffp-contract=off"),
    *("-U_FORTIFY_SOURCE", "-fno-stack-protector"),
)
KERNEL: Final = re.compile(r"__global__ void __launch_bounds__\(\d+\) (\w+)\(")
ENTRY: Final = (
    'extern "C" const char *host_{0}(void **given, unsigned blocks, unsigned threads)'
    " {{ return host::launch({0}, given, blocks, threads, {1}); }}\n"
    'extern "C" int size_{0}(int number) {{ return host::size_of({0}, number); }}\n'
)
ALIGNMENT: Final = 16
MEETING: Final = ("__syncthreads", "__shfl", "multiply_")
"""What stands in the text of a kernel whose threads meet."""


class Memory:
    """Bytes between two pages that may not be touched; they end where the second one begins."""

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        size = -(-max(1, nbytes) // ALIGNMENT) * ALIGNMENT
        held = -(-size // page) * page
        whole = mmap.mmap(-1, held + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(whole))
        for edge in (start, start + page + held):
            if LIBC.mprotect(ctypes.c_void_p(edge), page, 0):
                raise DeviceError("cuda-host: mprotect failed")
        self.address, self.nbytes, self.owner = start + page + held - size, nbytes, whole
        ctypes.memset(self.address, 0xFF, size)


LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Part:
    """A part of a memory, or an array of the host."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.address, self.nbytes, self.owner = address, nbytes, owner


class Kernel:
    """An entry of a built file, and the addresses of its arguments."""

    def __init__(self, entry: Any, name: str, buffers: int, built: object) -> None:
        self.entry, self.name, self.built = entry, name, built
        self.values = [ctypes.c_void_p() for _ in range(buffers)]
        self.items = ctypes.c_int()
        pointers = [ctypes.addressof(value) for value in (*self.values, self.items)]
        self.given = (ctypes.c_void_p * len(pointers))(*pointers)


class HostDevice(KernelDevice):
    """The processor as if it were a CUDA device."""

    def __init__(self) -> None:
        self.dialect = CudaC()
        self.traits = Traits(
            compute_units=4,
            has_f64=True,
            max_allocation_bytes=1 << 34,
            alignment=64,
            identity=f"cuda-host {' '.join(OPTIONS)} {_version()} {_shim()}",
            device_class="gpu",
            max_workgroup_size=1024,
            shared_memory_bytes=48 << 10,
        )
        self._folder = Path(tempfile.mkdtemp(prefix="ptir-cuda-host-"))
        weakref.finalize(self, shutil.rmtree, self._folder, True)
        self._headers: dict[str, Path] = {}
        self._made: dict[bytes, bytes] = {}
        self._launching = threading.Lock()

    def allocate(self, nbytes: int) -> Memory:
        return Memory(nbytes)

    def subspan(self, memory: Any, offset: int, nbytes: int) -> Part:
        return Part(memory.address + offset, nbytes, memory)

    def borrow(self, array: np.ndarray[Any, Any]) -> None:
        return None

    def write(self, memory: Any, array: np.ndarray[Any, Any]) -> None:
        ctypes.memmove(memory.address, array.ctypes.data, array.nbytes)

    def read(self, memory: Any, array: np.ndarray[Any, Any]) -> None:
        ctypes.memmove(array.ctypes.data, memory.address, array.nbytes)

    def copy(self, source: Any, destination: Any, nbytes: int) -> None:
        ctypes.memmove(destination.address, source.address, nbytes)

    def _header(self, prelude: str) -> Path:
        """The prelude behind the shim, compiled once: it is most of every source file."""
        if prelude not in self._headers:
            header = Path(self._folder, f"prelude{len(self._headers)}.h")
            header.write_text(f'#include "{HERE / "cuda_host.h"}"\n{emulated(prelude)}\n')
            _compiled("-x", "c++-header", str(header), "-o", f"{header}.gch", source=prelude)
            self._headers[prelude] = header
        return self._headers[prelude]

    def build(self, source: str) -> Any:
        prelude = self.dialect.prelude()
        assert source.startswith(prelude), "a source file begins with the prelude"
        digest = hashlib.blake2b(source.encode()).digest()
        if digest not in self._made:  # tests that build anew build some alike
            self._made[digest] = self._binary(prelude, source)
        return self.load(source, self._made[digest])

    def _binary(self, prelude: str, source: str) -> bytes:
        text = source.removeprefix(prelude)
        file = Path(self._folder, "kernels.cpp")
        file.write_text(text + "\n" + "".join(_entries(text)))
        made = file.with_suffix(".so")
        header = self._header(prelude)
        _compiled("-include", str(header), str(file), "-o", str(made), source=text)
        return made.read_bytes()

    def binary(self, built: Any) -> bytes:
        return built.binary  # type: ignore[no-any-return]

    def load(self, source: str, binary: bytes) -> Any:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(binary)
            file.flush()
            library = ctypes.CDLL(file.name)
        library.binary = binary
        return library

    def kernel(self, built: Any, name: str, arguments: int) -> Kernel:
        entry = getattr(built, f"host_{name}")
        entry.restype = ctypes.c_char_p
        return Kernel(entry, name, arguments, built)

    def bind(self, kernel: Kernel, position: int, memory: Any) -> None:
        kernel.values[position].value = memory.address

    def launch(self, kernel: Kernel, workgroups: int, workgroup_size: int = 1) -> None:
        """One launch after another, as in a stream: kernels of a file share its ``threadIdx``."""
        kernel.items.value = workgroups
        with self._launching:
            said = kernel.entry(kernel.given, *grid(workgroups, workgroup_size))
        if said:
            raise DeviceError(f"cuda-host: kernel {kernel.name}: {said.decode()}")

    def finish(self) -> None:
        """Everything is done when a call returns."""


def _entries(text: str) -> Iterator[str]:
    """What is called from outside, for every kernel; its text says whether its threads meet."""
    places = [(found.start(), found[1]) for found in KERNEL.finditer(text)]
    ends = [*(start for start, _ in places), len(text)][1:]
    for (start, name), end in zip(places, ends, strict=True):
        meets = any(word in text[start:end] for word in MEETING)
        yield ENTRY.format(name, str(meets).lower())


def _compiled(*arguments: str, source: str) -> None:
    done = subprocess.run([COMPILER, *OPTIONS, *arguments], capture_output=True, text=True)
    if done.returncode:
        wrong = [line for line in done.stderr.splitlines() if "error" in line]
        raise CompileError(f"cuda-host: {(wrong or [done.stderr])[0]}")


@cache
def _version() -> str:
    if shutil.which(COMPILER) is None:
        raise BackendUnavailable(f"cuda-host: {COMPILER} is not found; apt-get install g++")
    said = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    return said.stdout.splitlines()[0]


@cache
def _shim() -> int:
    """What built kernels depend on beside their text."""
    texts = [
        (HERE / name).read_text()
        for name in ("cuda_host.h", "fibres.h", "ptx.h", "ptx.py", "cuda_host.py")
    ]
    return hash_of("\n".join(texts))


def hash_of(text: str) -> int:
    import zlib

    return zlib.crc32(text.encode())


class HostBackend(KernelBackend):
    """The CUDA dialect on the processor."""

    name = "cuda-host"

    def devices(self) -> Sequence[Device]:
        _version()
        return (Device(0, "CUDA text on the processor", "cpu", "a test tool"),)

    def open(self, device: Device) -> HostDevice:
        return HostDevice()


def backend() -> HostBackend:
    return HostBackend()
