"""Where a report comes from: versions, and digests of the code that the run executed.

Rows of one run can be put together with rows of another only where all of this agrees.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from ptir.backend import Target
from ptir_testsuite.reports.distribution import OURS, dependencies_of, files_of

NOT_CODE = ("__pycache__",)
SHOWN: Final = 5  # differences that are named


def origin_of(target: Target, imports: Iterable[str] = ()) -> dict[str, Any]:
    """What ran, and on what: the fields of a header that must agree where a row is run again."""
    return {
        "device": target.device.name,
        "detail": target.device.detail,
        "code": {name: _digest(name) for name in sorted(OURS)},
        "files": files_of(target.backend, imports),
        "dependencies": dependencies_of(target.backend),
    }


def strange(header: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What of a header is otherwise here, for a reader; nothing where all agrees."""
    other = [name for name in ("device", "detail") if header[name] != here[name]]
    found = [f"another {' and '.join(other)} here than in the report"] if other else []
    code = [*differing(header["code"], here["code"]), *differing(header["files"], here["files"])]
    if code:
        found.append(f"another code here than in the report ({listed(code)})")
    if others := differing(header["dependencies"], here["dependencies"], values=True):
        found.append(f"other dependencies here than in the report ({listed(others)})")
    return found


def differing(there: Mapping[str, str], here: Mapping[str, str], values: bool = False) -> list[str]:
    """How two tables differ, entry by entry; with their ``values`` where a reader knows these."""
    found = []
    for name in sorted({*there, *here}):
        before, now = there.get(name), here.get(name)
        if before == now:
            continue
        if before is None:
            found.append(f"{name} is new")
        elif now is None:
            found.append(f"{name} is gone")
        else:
            found.append(f"{name} was {before} and is {now}" if values else f"{name} differs")
    return found


def listed(texts: list[str]) -> str:
    """Some texts on one line, and how many more there are."""
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more


@cache
def _digest(package: str) -> str:
    module = sys.modules[package]
    place = getattr(module, "__file__", None)
    if place is None:
        return "unknown"
    root = Path(place).parent
    state = hashlib.blake2b(digest_size=8)
    files = sorted(p for p in root.rglob("*") if p.is_file() and _is_code(p.relative_to(root)))
    assert files, f"{package} has no file in {root}"
    for file in files:
        content = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
        state.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return state.hexdigest()


def _is_code(path: Path) -> bool:
    """Whether a path within a package is of its code; what is above it may be hidden."""
    return not any(part in NOT_CODE or part.startswith(".") for part in path.parts)


def suite_version() -> str:
    """The installed version of this distribution, or that it is run from its sources."""
    try:
        return metadata.version("ptir-testsuite")
    except metadata.PackageNotFoundError:
        return "not installed"


def digest_of(texts: Iterable[str]) -> str:
    """A digest of some lines of text, in their order."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()
