"""Tiles measured on a device, kept on disk beside the kernels: one choice per device and driver.

The file ``tiles.json`` names each device as cache keys do. A choice whose fields are not those of
``Tiles`` was written by another version and does not count.
"""

from __future__ import annotations

import json
import threading
import warnings
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from ptir.backend.folders import ENVIRONMENT, cache_folder, replace_file
from ptir.backend.kernel import KernelDevice
from ptir.codegen.schedules.tiles import LEAST, Tiles, tiles_of
from ptir.errors import UsageError

FORMAT: Final = 2

_chosen: WeakKeyDictionary[KernelDevice, Tiles] = WeakKeyDictionary()
_lock = threading.Lock()


def tiles_for(device: KernelDevice) -> Tiles:
    """The tiles that programs are written with: what was measured, else the table's row.

    The file is read once per device and process. One that is damaged is a warning.
    """
    with _lock:
        if device not in _chosen:
            _chosen[device] = _on_disk(device) or tiles_of(device.traits.device_class)
        return _chosen[device]


def remember(device: KernelDevice, tiles: Tiles) -> None:
    """Use ``tiles`` on ``device`` from now on, in every process."""
    with _lock:
        _chosen[device] = tiles
        _write({**_remembered(), device.traits.identity: asdict(tiles)})


def forget() -> None:
    """Let this process forget what it read, as a new one would."""
    with _lock:
        _chosen.clear()


def file() -> Path:
    """Where the choices are kept."""
    return cache_folder() / "tiles.json"


def files() -> list[Path]:
    """The file, where there is one."""
    return [path for path in [file()] if path.exists()]


def choices() -> dict[str, dict[str, int]]:
    """All remembered choices by device; raises ``UsageError`` for a file that is damaged."""
    path = file()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _checked(found["devices"]) if found["format"] == FORMAT else {}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: not a list of measured tiles ({error})") from None


def _checked(devices: dict[str, Any]) -> dict[str, dict[str, int]]:
    for identity, values in devices.items():
        if not all(type(n) is int and n >= LEAST.get(name, 1) for name, n in values.items()):
            raise ValueError(f"{identity!r}: {values}")
    return devices


def _remembered() -> dict[str, dict[str, int]]:
    try:
        return choices()
    except UsageError as error:
        warnings.warn(f"{error}; the table's tiles are used", stacklevel=3)
        return {}


def _on_disk(device: KernelDevice) -> Tiles | None:
    values = _remembered().get(device.traits.identity)
    names = {field.name for field in fields(Tiles)}
    return Tiles(**values) if values is not None and values.keys() == names else None


def _write(devices: dict[str, dict[str, int]]) -> None:
    path = file()
    text = json.dumps({"format": FORMAT, "devices": devices}, indent=1)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        warnings.warn(
            f"{path}: cannot be written ({error.strerror}); the tiles are measured for this"
            f" process only; set {ENVIRONMENT} to a folder of yours",
            stacklevel=3,
        )
