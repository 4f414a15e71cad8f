"""The bandwidth of this machine's memory, measured once and kept in the cache folder.

What is kept is the greatest that any probe has found: others may have used the memory meanwhile.
"""

from __future__ import annotations

import json
import platform
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ptir.backend.folders import ENVIRONMENT, cache_folder, replace_file
from ptir.cli.bandwidth import is_host, probe_of, processors

if TYPE_CHECKING:
    from ptir.backend.contract import Target


@dataclass(frozen=True)
class Measured:
    """Bytes per second, and how they were measured, for people."""

    bytes_per_second: float
    kind: str

    def __post_init__(self) -> None:
        if not (isinstance(self.bytes_per_second, float) and self.bytes_per_second > 0):
            raise TypeError(f"bytes_per_second {self.bytes_per_second!r}")


def bandwidth_file() -> Path:
    """Where bandwidths are kept."""
    return cache_folder() / "bandwidth.json"


def bandwidth_of(target: Target) -> float:
    """Bytes per second of the memory that ``target`` computes in, probed if none are known."""
    known = _kept().get(machine(target))
    if known is not None:
        return known.bytes_per_second
    probe = probe_of(target)
    return keep(target, probe.bandwidth(), probe.kind)


def keep(target: Target, bytes_per_second: float, kind: str) -> float:
    """Keep what a probe has found, if nothing greater is known; gives the greater."""
    kept, key = _kept(), machine(target)
    if key in kept and kept[key].bytes_per_second >= bytes_per_second:
        return kept[key].bytes_per_second
    kept[key] = Measured(bytes_per_second, kind)
    _write(kept)
    return bytes_per_second


def machine(target: Target) -> str:
    """What a bandwidth is kept for: the processor and how much of it is used, or the device."""
    if not is_host(target):
        return f"{target.backend.name} {target.device.name}"
    from ptir.codegen.processor import facts

    name = facts().get("model name") or platform.processor()
    return f"{platform.machine()} {name}, {processors()} processors"


def _kept() -> dict[str, Measured]:
    path = bandwidth_file()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): Measured(**one) for key, one in found["bandwidths"].items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        said = f"{path}: no list of bandwidths ({error}); it is measured again, and replaced"
        warnings.warn(said, RuntimeWarning, stacklevel=3)
        return {}


def _write(kept: dict[str, Measured]) -> None:
    path = bandwidth_file()
    text = json.dumps({"bandwidths": {key: asdict(one) for key, one in kept.items()}}, indent=1)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        warnings.warn(
            f"{path}: cannot be written ({error.strerror}); the next run measures again; set"
            f" {ENVIRONMENT} to a folder of yours",
            RuntimeWarning,
            stacklevel=4,
        )
