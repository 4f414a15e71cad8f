"""NVRTC, CUDA's compiler as a library: found, called, and its errors told by kernel.

CuPy flushes denormals to zero in everything that it compiles, so kernels are compiled here, to
machine code of one architecture, and loaded as such. No GPU is needed.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ptir.codegen.api import in_kernel
from ptir.errors import BackendUnavailable, CompileError
from ptir_backend_cupy import platforms

VERSIONS: Final = (13, 12)
"""Major versions of CUDA, latest first."""
OPTIONS: Final = (
    "--std=c++17",
    # nothing is contracted but what says fma, denormals stay, divisions and roots are rounded
    *("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"),
    *("--disable-warnings", "--ptxas-options=-v"),
)

_PLACE: Final = re.compile(r"\((\d+)\): (?:catastrophic )?error:? ?(.*)")
_KERNEL: Final = re.compile(r"__global__ void __launch_bounds__\(\d+\) (\w+)\(")
_COMPILING: Final = re.compile(r"Compiling entry function '(\w+)'")
_FRAME: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill")
_USED: Final = re.compile(r"Used (\d+) registers(.*)")
_SHARED: Final = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: registers of a thread; bytes of its stack, spilled, and shared."""

    registers: int
    stack: int
    spilled: int
    shared: int


@dataclass(frozen=True)
class Cubin:
    """Machine code, and what each kernel in it takes, by name."""

    code: bytes
    resources: dict[str, Resources]


class Nvrtc:
    """NVRTC as it was loaded, from ``place``; raises ``CompileError`` for whatever fails."""

    def __init__(self, library: Any, place: str) -> None:
        self._library, self.place = library, place
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check("version", library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)
        library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @property
    def identity(self) -> str:
        """What machine code depends on beside its source and architecture."""
        return " ".join(("nvrtc", *map(str, self.version), *OPTIONS))

    def architectures(self) -> tuple[int, ...]:
        """Every one that it makes machine code for, as 90 for sm_90."""
        count = ctypes.c_int()
        self._check("count", self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check("architectures", self._library.nvrtcGetSupportedArchs(numbers))
        return tuple(numbers)

    def compiled(self, source: str, architecture: int) -> Cubin:
        """``source`` as machine code; raises ``CompileError`` with the kernel and the line."""
        if architecture not in (known := self.architectures()):
            version = ".".join(map(str, self.version))
            raise CompileError(
                f"cupy: NVRTC {version} makes no code for sm_{architecture} (sm_{known[0]} to"
                f" sm_{known[-1]} are known); install the CuPy of another CUDA version, see"
                " `ptir doctor`"
            )
        library, program = self._library, ctypes.c_void_p()
        text = source.encode()
        made = library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None)
        self._check("program", made)
        try:
            options = [f"--gpu-architecture=sm_{architecture}", *OPTIONS]
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            failed = library.nvrtcCompileProgram(program, len(options), given)
            log = self._bytes("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if failed:
                raise CompileError(f"cupy: NVRTC failed{_first_error(source, log)}")
            return Cubin(self._bytes("CUBIN", program), resources(log))
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        of = getattr(self._library, f"nvrtcGet{what}Size")
        self._check(what, of(program, ctypes.byref(size)))
        held = ctypes.create_string_buffer(size.value)
        self._check(what, getattr(self._library, f"nvrtcGet{what}")(program, held))
        return held.raw

    def _check(self, what: str, result: int) -> None:
        if result:
            said = self._library.nvrtcGetErrorString(result)
            raise CompileError(f"cupy: NVRTC ({what}): {ctypes.string_at(said).decode()}")


def resources(log: str) -> dict[str, Resources]:
    """What each kernel takes, from what the assembler says in the log."""
    found: dict[str, Resources] = {}
    name, frame = "", (0, 0, 0)
    for line in log.splitlines():
        if match := _COMPILING.search(line):
            name, frame = match[1], (0, 0, 0)
        elif name and (match := _FRAME.search(line)):
            frame = (int(match[1]), int(match[2]), int(match[3]))
        elif name and (match := _USED.search(line)):
            shared = _SHARED.search(match[2])
            taken = int(shared[1]) if shared else 0
            found[name] = Resources(int(match[1]), frame[0], frame[1] + frame[2], taken)
            name = ""
    return found


def _first_error(source: str, log: str) -> str:
    place = _PLACE.search(log)
    if place is None:
        lines = [line for line in log.splitlines() if line.strip()]
        return f": {next((line for line in lines if 'error' in line), '; '.join(lines[:1]))}"
    lines, line = source.splitlines(), int(place[1])
    text = lines[line - 1].strip() if line <= len(lines) else ""
    return f"{in_kernel(source, place, _KERNEL)}: {place[2]} (`{text[:120]}`)"


def versions() -> tuple[int, ...]:
    """Major versions of CUDA, the driver's first: it takes no machine code of a later one."""
    driver = platforms.driver()
    return tuple(sorted(VERSIONS, key=lambda one: driver is None or one != driver.version[0]))


def places() -> tuple[str, ...]:
    """Where the library may be: of the driver's version before others, wheels before the system."""
    return tuple(name for version in versions() for name in _places(version))


def _places(version: int) -> Iterator[str]:
    for folder in platforms.nvidia_folders():
        for inside in (folder / f"cu{version}", folder / "cuda_nvrtc"):
            for files in (f"lib/libnvrtc.so.{version}", f"bin/**/nvrtc64_{version}*_0.dll"):
                yield from map(str, sorted(inside.glob(files)))
    if sys.platform == "win32":
        if name := find_library(f"nvrtc64_{version}0_0"):
            yield name
    else:
        yield f"libnvrtc.so.{version}"
        yield f"/usr/local/cuda/lib64/libnvrtc.so.{version}"


@cache
def find() -> Nvrtc:
    """The first library that loads; raises ``BackendUnavailable``."""
    for name in places():
        if library := platforms.loaded(name):
            return Nvrtc(library, name)
    raise BackendUnavailable(
        "cupy: NVRTC is not found, which compiles kernels: `pip install nvidia-cuda-nvrtc` (CUDA"
        " 13) or `pip install nvidia-cuda-nvrtc-cu12` (CUDA 12), or install the CUDA toolkit"
    )
