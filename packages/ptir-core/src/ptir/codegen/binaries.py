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
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from ptir import events
from ptir.backend.folders import ENVIRONMENT, PART, cache_folder, replace_file
from ptir.backend.kernel import KernelDevice
from ptir.codegen import panels
from ptir.switches import switched_on

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


def key_of(device: KernelDevice, source: str) -> str:
    """The name of the entry for ``source`` on ``device``."""
    versions = f"{FORMAT}.{panels.VERSION}"
    content = hashlib.blake2b(digest_size=20)
    for part in (versions, device.dialect.name, device.traits.identity, source):
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


def read(key: str) -> bytes | None:
    """The binary under ``key``, or None where there is none; raises ``Damaged``."""
    path = folder() / (key + SUFFIX)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    start = len(MAGIC) + _CHECKSUM
    binary = content[start:]
    if content[:start] != MAGIC + _checksum(binary):
        raise Damaged(f"{path} is damaged")
    with suppress(OSError):  # a folder that may only be read
        os.utime(path)
    return binary


def write(key: str, binary: bytes, limit: int = LIMIT) -> None:
    """Keep ``binary`` and make room for it; raises ``OSError``."""
    replace_file(folder() / (key + SUFFIX), MAGIC + _checksum(binary) + binary)
    _make_room(limit)


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

_known: WeakKeyDictionary[KernelDevice, OrderedDict[str, Any]] = WeakKeyDictionary()
_lock = threading.RLock()


def built(device: KernelDevice, source: str) -> Any:
    """``source`` built for ``device``: by this process before, from disk, or now.

    With ``PTIR_REBUILD_KERNELS=1`` it is always built now. Raises ``CompileError``.
    """
    if switched_on("PTIR_REBUILD_KERNELS"):
        return _announced(device, source, False, lambda: device.build(source))
    key = key_of(device, source)
    with _lock:
        known = _known.setdefault(device, OrderedDict())
        if key in known:
            known.move_to_end(key)
            return known[key]
        return _keep_known(known, key, _from_disk(device, source, key) or _new(device, source, key))


def is_known(device: KernelDevice, source: str) -> bool:
    """Whether this process has built ``source`` for ``device``."""
    with _lock:
        return key_of(device, source) in _known.get(device, ())


def remember(device: KernelDevice, source: str, made: Any) -> None:
    """Have ``built`` give ``made`` for ``source`` in this process."""
    with _lock:
        _keep_known(_known.setdefault(device, OrderedDict()), key_of(device, source), made)


def _keep_known(known: OrderedDict[str, Any], key: str, made: Any) -> Any:
    """``made``, kept as the newest; what was used least recently goes when there are too many."""
    known[key] = made
    known.move_to_end(key)
    if len(known) > REMEMBERED:
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
        name = key_of(device, source)
        events.emit(events.KernelsBuilt(name, device.traits.identity, seconds, restored))
    return made


def _from_disk(device: KernelDevice, source: str, key: str) -> Any | None:
    try:
        binary = read(key)
        if binary is None:
            return None
        found = _announced(device, source, True, lambda: device.load(source, binary))
        if found is None:
            raise Damaged(f"{folder() / (key + SUFFIX)} is refused by the driver")
        return found
    except Damaged as problem:
        warnings.warn(f"kernel cache: {problem}; its kernels are built again", stacklevel=2)
        return None


def _new(device: KernelDevice, source: str, key: str) -> Any:
    made = _announced(device, source, False, lambda: device.build(source))
    binary = device.binary(made)
    if binary is not None:
        _keep(key, binary)
    return made


def _keep(key: str, binary: bytes) -> None:
    try:
        write(key, binary)
    except OSError as error:
        warnings.warn(
            f"kernel cache: {folder()} cannot be written ({error.strerror}); kernels are built"
            f" again by every process; set {ENVIRONMENT} to a folder of yours",
            stacklevel=2,
        )
