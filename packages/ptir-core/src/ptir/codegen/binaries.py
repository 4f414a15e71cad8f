"""Built kernels kept on disk: a program that was built once is loaded the next time.

A file is named by everything that decides its content: the source, the language and its options,
the device with its driver, and the version of the packed layout. A file that the driver does not
take is built again.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

from ptir.backend.folders import cache_folder, replace_file
from ptir.backend.kernel import KernelDevice
from ptir.codegen.panels import VERSION
from ptir.switches import switched_on


def folder() -> Path:
    """Where the binaries are."""
    return cache_folder() / "kernels"


def built(device: KernelDevice, source: str) -> Any:
    """``source`` built for the device, from disk where it can be; raises ``CompileError``.

    With ``PTIR_REBUILD_KERNELS=1`` nothing is read or written.
    """
    if switched_on("PTIR_REBUILD_KERNELS"):
        return device.build(source)
    path = folder() / _name(device, source)
    found = _read(path)
    program = None if found is None else device.load(source, found)
    if program is None:
        program = device.build(source)
        _keep(path, device.binary(program))
    return program


def _name(device: KernelDevice, source: str) -> str:
    parts = (device.dialect.name, device.traits.identity, str(VERSION), source)
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(f"{len(part)}:{part}".encode())
    return state.hexdigest()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _keep(path: Path, binary: bytes | None) -> None:
    if binary is None:
        return
    try:
        replace_file(path, binary)
    except OSError as error:
        said = f"{path}: cannot be written ({error.strerror}); kernels are built again every time"
        warnings.warn(f"{said}; set PTIR_CACHE_DIR to a folder of yours", stacklevel=2)
