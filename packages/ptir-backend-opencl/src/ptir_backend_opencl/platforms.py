"""Which OpenCL devices there are, best first, and what each can do."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from platform import machine
from typing import Any, Final

from ptir.backend import Device
from ptir.backend.contract import DeviceKind
from ptir.codegen.api import processor
from ptir.errors import BackendUnavailable, UsageError, unknown_name
from ptir_backend_opencl import drivers

WITHOUT: Final = "PTIR_OPENCL_WITHOUT"
"""The environment variable that names, with commas, features to do without."""
FEATURES: Final[dict[str, tuple[str, ...]]] = {
    "fp16": ("cl_khr_fp16",),
    "fp64": ("cl_khr_fp64",),
    "subgroups": ("cl_khr_subgroups", "cl_intel_subgroups"),
    "large-groups": (),
    "chains": (),
    "dots": (),
}
"""What can be done without, and the extensions that go.

``large-groups`` are workgroups above 256; ``chains`` are persistent kernels, several kernels in one
launch; ``dots`` are the processor's dot products.
"""
SUBGROUP: Final = 16
"""Threads of a subgroup, where it can be chosen: every device of Intel has this size."""
POINTER: Final = 8
"""Bytes of a buffer among the arguments of a kernel."""

LARGEST: Final = "largest="
"""The word that lowers the largest single allocation, with a size behind it."""
UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SIZE: Final = re.compile(rf"([1-9]\d*)({'|'.join(UNITS)})")

ORDER: Final[tuple[DeviceKind, ...]] = ("discrete", "integrated", "cpu")


def require_pyopencl() -> None:
    """Raise ``BackendUnavailable`` where PyOpenCL is not installed; imports nothing."""
    if find_spec("pyopencl") is None:
        raise BackendUnavailable("opencl: PyOpenCL is not installed; pip install pyopencl")


def found() -> list[tuple[Device, Any]]:
    """The devices with what PyOpenCL calls them, in the order of preference.

    Discrete GPUs, integrated GPUs, CPUs; the one with more memory first, and among CPUs Intel's
    runtime before others. Raises ``BackendUnavailable`` with the fix when there is none.
    """
    with drivers.registered():
        listed = [device for platform in _platforms() for device in _devices(platform)]
    usable = [device for device in listed if device.available and device.compiler_available]
    if not usable:
        raise BackendUnavailable(_none_usable(listed))
    usable.sort(key=_preference)
    return [
        (Device(number, _name(device), kind_of(device), _detail(device)), device)
        for number, device in enumerate(usable)
    ]


def _platforms() -> list[Any]:
    require_pyopencl()
    try:
        import pyopencl as cl
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            f"opencl: PyOpenCL cannot be imported ({error}); `pip install --force-reinstall"
            " pyopencl`, which brings its own loader, or `apt-get install ocl-icd-libopencl1`"
        ) from error
    try:
        return list(cl.get_platforms())
    except cl.Error as error:
        raise BackendUnavailable(f"opencl: {_no_platform()}") from error


def _no_platform() -> str:
    tried = drivers.drivers()
    if not tried:
        where = f" in {drivers.vendors()}" if sys.platform == "linux" else ""
        return f"no driver is registered{where}; {drivers.INSTALL}"
    broken = [f"{d.icd} {d.problem}; {d.fix}" for d in tried if d.problem]
    listed = ", ".join(str(driver.icd) for driver in tried)
    return "; ".join(broken) or f"no platform, though drivers are registered ({listed})"


def _devices(platform: Any) -> list[Any]:
    import pyopencl as cl

    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform without devices says so with an error
        return []


def _none_usable(listed: list[Any]) -> str:
    if not listed:
        return f"opencl: the platforms have no device; {drivers.INSTALL}"
    names = ", ".join(_name(device) for device in listed)
    return f"opencl: no device is available with a compiler ({names}); {drivers.INSTALL}"


def _preference(device: Any) -> tuple[int, bool, int, str]:
    kind = kind_of(device)
    other = kind == "cpu" and "intel" not in device.platform.name.lower()
    return ORDER.index(kind), other, -device.global_mem_size, _name(device)


def kind_of(device: Any) -> DeviceKind:
    """``discrete``, ``integrated`` or ``cpu``."""
    import pyopencl as cl

    if not device.type & (cl.device_type.GPU | cl.device_type.ACCELERATOR):
        return "cpu"
    return "integrated" if device.host_unified_memory else "discrete"


def class_of(device: Any) -> str:
    """The row of ``codegen.schedules.tiles.TILES``; CPUs are told apart by their vectors."""
    if kind_of(device) != "cpu":
        return "gpu"
    return processor.class_of(device.native_vector_width_float)


def _name(device: Any) -> str:
    return str(device.name).strip().rstrip("\0")


def _detail(device: Any) -> str:
    return f"{device.platform.name.strip()}, {device.version.strip()}"


def lacking() -> frozenset[str]:
    """What devices are said to lack; raises ``UsageError`` for a word that means nothing."""
    found = frozenset(word for word in _words() if not word.startswith(LARGEST))
    for word in sorted(found - set(FEATURES)):
        raise UsageError(f"{WITHOUT}: {unknown_name('feature', word, (*FEATURES, LARGEST))}")
    return found


def _words() -> list[str]:
    words = (word.strip() for word in os.environ.get(WITHOUT, "").split(","))
    return [word for word in words if word]


def largest_allocation(device: Any) -> int:
    """Bytes of the largest single allocation; ``largest=64MiB`` among the words makes it less."""
    most = int(device.max_mem_alloc_size)
    for word in _words():
        if word.startswith(LARGEST):
            size = SIZE.fullmatch(word.removeprefix(LARGEST))
            if size is None:
                raise UsageError(f"{WITHOUT}: {word!r} is not like {LARGEST}64MiB")
            most = min(most, int(size[1]) * UNITS[size[2]])
    return most


def extensions(device: Any) -> frozenset[str]:
    """The device's extensions, less those of what it is said to lack."""
    hidden = {name for word in lacking() for name in FEATURES[word]}
    return frozenset(device.extensions.split()) - hidden


def work_group_size(device: Any) -> int:
    """Work-items of the largest workgroup that a tree of halves can reduce: a power of two."""
    most = 1 << int(device.max_work_group_size).bit_length() - 1
    return min(most, 256) if "large-groups" in lacking() else most


def subgroup_size(device: Any) -> int:
    """Threads that can shuffle values; 0 where their number cannot be fixed."""
    needed = {"cl_intel_subgroups", "cl_intel_required_subgroup_size"}
    return SUBGROUP if needed <= extensions(device) else 0


def misreads_local_ids(device: Any) -> bool:
    """Whether conditions on local ids may come out wrong, as on Intel's runtime for processors.

    It turns a kernel whose whole body waits for ``thread < 8`` into a loop over those threads. Of
    two such kernels in a source, both copying rows in an inner loop, the second one (2026.2) ran
    threads 9 and up instead.
    """
    return kind_of(device) == "cpu" and "intel" in device.platform.name.lower()


def chain_memories(device: Any) -> int:
    """Most buffers of a persistent kernel; 0 where kernels are launched one by one."""
    if kind_of(device) != "cpu" or "chains" in lacking():
        return 0
    return int(device.max_parameter_size) // POINTER


def yields_threads(device: Any) -> bool:
    """Whether kernels are compiled by Clang into threads of Linux on x86-64, as PoCL does."""
    host = (sys.platform, machine())
    return host == ("linux", "x86_64") and "pocl" in device.version.lower()


def runs_here(device: Any) -> bool:
    """Whether kernels are compiled by Clang for the processor that this process runs on."""
    return kind_of(device) == "cpu" and yields_threads(device)


def own_functions(device: Any) -> bool:
    """Whether our ``exp``, ``tanh`` and ``erf`` are faster than those that are built in."""
    return kind_of(device) == "cpu" and "pocl" in device.version.lower()


def capabilities(device: Any) -> dict[str, Any]:
    """What the driver says about a device, under names that stay."""
    import pyopencl as cl

    has = extensions(device)
    return {
        "platform": device.platform.name.strip(),
        "opencl": device.version.strip(),
        "driver": device.driver_version.strip(),
        "fp16": "cl_khr_fp16" in has,
        "fp64": "cl_khr_fp64" in has,
        "subgroups": bool(has & set(FEATURES["subgroups"])),
        "compute_units": device.max_compute_units,
        "work_group_size": work_group_size(device),
        "local_memory_bytes": device.local_mem_size,
        "local_memory_dedicated": device.local_mem_type == cl.device_local_mem_type.LOCAL,
        "memory_bytes": device.global_mem_size,
        "largest_allocation_bytes": largest_allocation(device),
        "chain_memories": chain_memories(device),
        "shares_host_memory": shares_host_memory(device),
    }


def shares_host_memory(device: Any) -> bool:
    """Whether kernels can read the host's memory where it is."""
    return kind_of(device) != "discrete"
