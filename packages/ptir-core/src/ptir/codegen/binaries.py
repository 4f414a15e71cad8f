"""Built kernels kept on disk: a source file is built once per device and driver, ever.

An entry is one file, named after everything it depends on: the source, the device with its driver
and build options, and the version of the format. Processes share the folder: entries are written
in one step, read with a checksum, and the least recently used ones leave when it grows too large.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from ptir import events
from ptir.backend.disk import ENVIRONMENT, PART, cache_folder, replace_file
from ptir.backend.kernel import KernelDevice
from ptir.codegen import panels
from ptir.errors import CompileError

FORMAT: Final = 1
MAGIC: Final = b"ptir-kernels %d\n" % FORMAT
SUFFIX: Final = ".kernels"
LIMIT: Final = 512 << 20
"""Most bytes of all entries."""
ABANDONED: Final = 3600.0
"""Seconds after which a file half written belongs to nobody."""
REMEMBERED: Final = 512
"""Built files that a process keeps per device."""

_CHECKSUM: Final = 32


class Damaged(Exception):  # noqa: N818  not an error of the caller's
    """An entry that is not what was written."""


def folder() -> Path:
    """Where the entries are."""
    return cache_folder() / "kernels"


def key_of(source: str, device: KernelDevice) -> str:
    """The name of the entry for ``source`` on ``device``."""
    parts = (f"{FORMAT}.{panels.VERSION}", device.traits.identity, device.options, source)
    content = hashlib.blake2b(digest_size=20)
    for part in parts:
        encoded = part.encode()
        content.update(len(encoded).to_bytes(8, "little") + encoded)
    return content.hexdigest()


def files() -> list[Path]:
    """All files of this cache, those half written included."""
    return [path for path, _ in _listed()]


def _listed() -> Iterator[tuple[Path, os.stat_result]]:
    with suppress(FileNotFoundError), os.scandir(folder()) as listing:
        for file in listing:
            with suppress(FileNotFoundError):  # another process was faster
                if file.name.endswith((SUFFIX, PART)):
                    yield Path(file.path), file.stat()


# --- one entry ---


def load(key: str) -> bytes | None:
    """The binary under ``key``, or None; raises ``Damaged`` and removes what is damaged."""
    path = folder() / (key + SUFFIX)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    start = len(MAGIC) + _CHECKSUM
    binary = content[start:]
    if content[:start] != MAGIC + _checksum(binary):
        discard(key)
        raise Damaged(f"{path} is damaged")
    with suppress(OSError):  # a folder that may only be read
        os.utime(path)
    return binary


def store(key: str, binary: bytes, limit: int = LIMIT) -> None:
    """Keep ``binary`` and make room for it; raises ``OSError``."""
    replace_file(folder() / (key + SUFFIX), MAGIC + _checksum(binary) + binary)
    _make_room(limit)


def discard(key: str) -> None:
    """Remove an entry that is of no use."""
    with suppress(OSError):
        (folder() / (key + SUFFIX)).unlink()


def _checksum(binary: bytes) -> bytes:
    return hashlib.blake2b(binary, digest_size=_CHECKSUM).digest()


def _make_room(limit: int) -> None:
    """Remove what was used least recently, and files that were never finished."""
    kept = []
    for path, status in _listed():
        if path.suffix == SUFFIX:
            kept.append((status.st_mtime_ns, status.st_size, path))
        elif time.time() - status.st_mtime > ABANDONED:
            path.unlink(missing_ok=True)
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept)[:-1]:
        if total <= limit:
            break
        path.unlink(missing_ok=True)
        total -= size


# --- building ---

_built: WeakKeyDictionary[KernelDevice, OrderedDict[str, Any]] = WeakKeyDictionary()
_lock = threading.RLock()


def build(source: str, device: KernelDevice) -> Any:
    """``source`` built for ``device``: from this process, from disk, or now.

    Raises ``CompileError``.
    """
    key = key_of(source, device)
    with _lock:
        known = _built.setdefault(device, OrderedDict())
        if key not in known:
            known[key] = _restored_or_built(key, source, device)
            if len(known) > REMEMBERED:
                known.popitem(last=False)
        known.move_to_end(key)
        return known[key]


def _restored_or_built(key: str, source: str, device: KernelDevice) -> Any:
    began = time.perf_counter()
    found = _restored(key, device)
    restored = found is not None
    if not restored:
        found = device.build(source)
        _keep(key, found, device)
    seconds = time.perf_counter() - began
    events.emit(events.KernelsBuilt(key, device.traits.identity, seconds, restored))
    return found


def _restored(key: str, device: KernelDevice) -> Any | None:
    try:
        binary = load(key)
        return None if binary is None else device.restore(binary)
    except (Damaged, CompileError) as error:
        discard(key)
        warnings.warn(f"kernel cache: {error}; its kernels are built again", stacklevel=5)
        return None


def _keep(key: str, built: Any, device: KernelDevice) -> None:
    binary = device.binary(built)
    if binary is None:
        return
    try:
        store(key, binary)
    except OSError as error:
        warnings.warn(
            f"kernel cache: {folder()} cannot be written ({error.strerror}); kernels are built"
            f" again by every process; set {ENVIRONMENT} to a folder of yours",
            stacklevel=5,
        )
