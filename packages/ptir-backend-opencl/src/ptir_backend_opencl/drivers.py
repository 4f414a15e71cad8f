"""OpenCL drivers on this machine: which are registered, whether they load, and Intel's from pip.

A driver is a shared library named by a ``.icd`` file. The loader reads these from one folder, the
system's or the one in ``OCL_ICD_VENDORS``. Intel's CPU runtime, installed by pip, registers itself
with a wrong path in a folder that nobody reads; ``registered`` puts that right for as long as the
loader looks, in a private folder that links everything else that is registered.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

SYSTEM: Final = Path("/etc/OpenCL/vendors")
VARIABLE: Final = "OCL_ICD_VENDORS"
INTEL: Final = "intel-opencl-rt"
INTEL_LIBRARY: Final = "libintelocl.so"
INTEL_NEEDS: Final = ("libintlc.so.5", "libirng.so", "libsvml.so", "libimf.so")
"""What Intel's runtime expects to be loaded before it, in this order."""
INSTALL: Final = (
    "install a driver: `apt-get install pocl-opencl-icd` or `pip install"
    " 'ptir-backend-opencl[cpu]'` for the CPU, intel-opencl-icd, mesa-opencl-icd,"
    " rocm-opencl-runtime or the maker's driver for a GPU"
)


@dataclass(frozen=True)
class Driver:
    """A registered driver: its ``.icd`` file, the library in it, and why that does not load."""

    icd: Path
    library: str
    problem: str = ""
    fix: str = ""


def vendors() -> Path:
    """The folder (or the single file) that the loader reads."""
    return Path(os.environ.get(VARIABLE) or SYSTEM)


def icd_files() -> list[Path]:
    """The registered ``.icd`` files."""
    place = vendors()
    if place.is_file():
        return [place]
    return sorted(place.glob("*.icd")) if place.is_dir() else []


def drivers() -> list[Driver]:
    """Every registered driver, tried."""
    return [_tried(path) for path in icd_files()]


def _tried(icd: Path) -> Driver:
    try:
        library = icd.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        return Driver(icd, "", f"cannot be read ({error})", f"correct or remove {icd}")
    if not library:
        return Driver(icd, "", "names no library", f"write the driver's path into {icd}")
    if os.path.isabs(library) and not os.path.exists(library):
        said = f"names {library}, which does not exist"
        return Driver(icd, library, said, f"write the library's real path into {icd}; {_hint()}")
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return Driver(icd, library, f"does not load: {error}", f"reinstall the driver behind {icd}")
    return Driver(icd, library)


def _hint() -> str:
    runtime = intel_runtime()
    if runtime is None:
        return "reinstall that driver if you do not know it"
    return f"Intel's runtime is {runtime / INTEL_LIBRARY}, which ptir finds without an .icd file"


def intel_runtime() -> Path | None:
    """The folder of Intel's CPU runtime, if pip installed it."""
    try:
        files = metadata.files(INTEL) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == INTEL_LIBRARY:
            path = Path(os.path.abspath(str(file.locate())))
            return path.parent if path.exists() else None
    return None


@contextmanager
def registered() -> Iterator[None]:
    """While it lasts, the loader sees Intel's runtime from pip beside everything registered.

    The loader looks once in a process, when platforms are first asked for: do that inside.
    Nothing happens where the runtime is not installed.
    """
    runtime = intel_runtime()
    if runtime is None:
        yield
        return
    for name in INTEL_NEEDS:
        ctypes.CDLL(str(runtime / name), mode=ctypes.RTLD_GLOBAL)
    before = os.environ.get(VARIABLE)
    private = Path(tempfile.mkdtemp(prefix="ptir-opencl-"))
    try:
        _fill(private, runtime / INTEL_LIBRARY)
        os.environ[VARIABLE] = str(private)
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        shutil.rmtree(private, ignore_errors=True)


def _fill(private: Path, library: Path) -> None:
    for path in icd_files():
        if INTEL_LIBRARY not in path.read_text(encoding="utf-8", errors="replace"):
            (private / path.name).symlink_to(path.resolve())
    (private / "ptir-intel-cpu.icd").write_text(f"{library}\n", encoding="utf-8")
