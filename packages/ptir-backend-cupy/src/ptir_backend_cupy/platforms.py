"""Which driver this machine has, which CuPy goes with it, and the line that installs that one."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ptir.errors import BackendUnavailable

DRIVERS: Final = {"win32": ("nvcuda.dll",)}
"""NVIDIA's driver by system; elsewhere it is ``libcuda``."""
LINUX: Final = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
ROCM: Final = Path("/opt/rocm")
ROCM_LIBRARY: Final = "libamdhip64.so"

EXTRAS: Final = {11: "", 12: "cuda12", 13: "cuda13"}
"""The extra for each major version of CUDA that a driver may be for."""
WHEELS: Final = {
    "cupy-cuda12x": "CUDA 12",
    "cupy-cuda13x": "CUDA 13",
    "cupy-rocm-7-0": "ROCm 7",
    "cupy": "a build from source",
}
"""Distributions that hold CuPy; there must be one."""
BROKEN: Final = frozenset(("14.1.0",))
"""Versions of CuPy that do not work."""


@dataclass(frozen=True)
class Driver:
    """A driver of this machine: its maker's platform and the version that it is for."""

    platform: str
    version: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        if self.platform == "ROCm":
            return "an AMD driver (ROCm)"
        return f"an NVIDIA driver for CUDA {self.version[0]}.{self.version[1]}"

    @property
    def extra(self) -> str:
        """The extra of this package that goes with it; nothing where none does."""
        if self.platform == "ROCm":
            return "rocm7"
        return EXTRAS.get(min(self.version[0], max(EXTRAS)), "")

    @property
    def advice(self) -> str:
        """What to do for CuPy on it."""
        if not self.extra:
            return (
                "CuPy 14 needs a driver for CUDA 12 or later (525.60 or later); update the driver"
            )
        return f'pip install "ptir-backend-cupy[{self.extra}]"'


NO_DRIVER: Final = (
    "no NVIDIA driver (libcuda) and no ROCm are found; an NVIDIA GPU needs its driver, then `pip"
    ' install "ptir-backend-cupy[cuda13]"` (cuda12 for drivers of CUDA 12); other machines: `pip'
    " install ptir-backend-c` or `pip install ptir-backend-opencl`"
)


def driver() -> Driver | None:
    """NVIDIA's driver, else AMD's, else None; starts nothing."""
    for name in DRIVERS.get(sys.platform, LINUX):
        version = _cuda_version(name)
        if version is not None:
            return Driver("CUDA", version)
    if ROCM.is_dir() or loaded(ROCM_LIBRARY):
        return Driver("ROCm")
    return None


def _cuda_version(library: str) -> tuple[int, int] | None:
    """The CUDA version that a driver is for, or None where it does not load or answer."""
    found, number = loaded(library), ctypes.c_int()
    if found is None or found.cuDriverGetVersion(ctypes.byref(number)):
        return None
    return number.value // 1000, number.value % 1000 // 10


def loaded(library: str) -> ctypes.CDLL | None:
    """A library by its name or path, or None where it does not load."""
    try:
        return ctypes.CDLL(library)
    except OSError:
        return None


def nvidia_folders() -> list[Path]:
    """Where pip puts the libraries and programs of CUDA; nothing is imported."""
    spec = find_spec("nvidia")
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def wheels() -> dict[str, str]:
    """The installed distributions that hold CuPy, with their versions."""
    found = {}
    for name in WHEELS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def require_cupy() -> Driver:
    """The driver, where one CuPy is installed that fits it; imports nothing.

    Raises ``BackendUnavailable`` with the line to run.
    """
    found, installed = driver(), wheels()
    if len(installed) > 1:
        raise BackendUnavailable(
            f"cupy: several distributions of CuPy are installed ({', '.join(installed)}), which"
            f" overwrite each other: `pip uninstall {' '.join(installed)}`, then"
            f" {found.advice if found else NO_DRIVER}"
        )
    if found is None:
        raise BackendUnavailable(f"cupy: {NO_DRIVER}")
    if not installed and find_spec("cupy") is None:
        raise BackendUnavailable(
            f"cupy: CuPy is not installed and there is {found}; {found.advice}"
        )
    for name, version in installed.items():
        if version in BROKEN:
            raise BackendUnavailable(f"cupy: {name} {version} does not work; {found.advice}")
    if found.platform == "ROCm":
        raise BackendUnavailable(
            "cupy: generated kernels run on NVIDIA GPUs only, there is an AMD driver; `pip install"
            " ptir-backend-opencl` runs on AMD GPUs"
        )
    return found


def cupy() -> Any:
    """The module, where it imports and finds a device; raises ``BackendUnavailable``."""
    found = require_cupy()
    try:
        cupy: Any = import_module("cupy")
    except Exception as error:  # whatever its libraries raise
        raise BackendUnavailable(
            f"cupy: CuPy cannot be imported ({error}); {found.advice}"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        wheel = ", ".join(f"{name} {version}" for name, version in wheels().items()) or "CuPy"
        raise BackendUnavailable(
            f"cupy: {wheel} finds no usable device with {found}: {error}; {found.advice}"
        ) from error
    if not count:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"CUDA_VISIBLE_DEVICES={hidden} hides them" if hidden is not None else "none is there"
        raise BackendUnavailable(f"cupy: there is {found} and no device: {why}")
    return cupy
