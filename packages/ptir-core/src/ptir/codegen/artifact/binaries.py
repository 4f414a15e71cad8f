"""Built kernels in the disk cache: a source file is built once per device and driver, ever.

An entry is named after everything it depends on: the source, the device with its driver and build
options, and the version of the format.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from ptir import events
from ptir.backend.cache_key import CacheKey, note_stored, tell_lookup
from ptir.backend.disk_cache import Damaged, DiskCache
from ptir.backend.kernel import KernelDevice
from ptir.codegen.weights import panels
from ptir.switches import switched_on

FORMAT: Final = 1
BINARIES: Final = DiskCache("kernels", FORMAT, limit=512 << 20)
MEMORY_CACHE_SIZE: Final = 512
"""Built files that a process keeps per device."""


def binary_key(device: KernelDevice, source: str) -> CacheKey:
    """The name of the entry for ``source`` on ``device``."""
    return CacheKey.of(
        {
            "format": f"{FORMAT}.{panels.VERSION}",
            "dialect": device.dialect.name,
            "device": device.traits.identity,
            "source": source,
        }
    )


_known: WeakKeyDictionary[KernelDevice, OrderedDict[str, Any]] = WeakKeyDictionary()
_lock = threading.RLock()


def built(device: KernelDevice, source: str) -> Any:
    """``source`` built for ``device``: by this process before, from disk, or now.

    With ``PTIR_REBUILD_KERNELS=1`` the disk is left alone. Raises ``CompileError``.
    """
    key = binary_key(device, source)
    with _lock:
        known = _known.setdefault(device, OrderedDict())
        if key in known:
            known.move_to_end(key)
            return known[key]
        if switched_on("PTIR_REBUILD_KERNELS"):
            made = _announced(device, source, False, lambda: device.build(source))
        else:
            made = _from_disk(device, source, key) or _new(device, source, key)
        known[key] = made
        if len(known) > MEMORY_CACHE_SIZE:
            known.popitem(last=False)
        return made


def forget() -> None:
    """Let this process forget what it built, as a new one would."""
    with _lock:
        _known.clear()


def _announced(
    device: KernelDevice, source: str, restored: bool, make: Callable[[], Any | None]
) -> Any | None:
    """What ``make`` gives, timed and told to whoever listens."""
    began = time.perf_counter()
    made = make()
    if made is not None:
        seconds = time.perf_counter() - began
        name = binary_key(device, source)
        events.emit(events.KernelsBuilt(name, device.traits.identity, seconds, restored))
    return made


def _from_disk(device: KernelDevice, source: str, key: CacheKey) -> Any | None:
    try:
        binary = BINARIES.read(key)
        tell_lookup(BINARIES, key, binary is not None)
        if binary is None:
            return None
        found = _announced(device, source, True, lambda: device.load(source, binary))
        if found is None:
            raise Damaged(f"{BINARIES.path(key)} is refused by the driver")
        return found
    except Damaged as problem:
        warnings.warn(f"kernel cache: {problem}; its kernels are built again", stacklevel=2)
        return None


def _new(device: KernelDevice, source: str, key: CacheKey) -> Any:
    made = _announced(device, source, False, lambda: device.build(source))
    binary = device.binary(made)
    if binary is not None:
        BINARIES.store(key, binary, "kernel cache", "kernels are built again")
        note_stored(BINARIES, key)
    return made
