"""Backends that a machine may lack: their tests are skipped without one, unless it is required.

``PTIR_REQUIRE_BACKENDS`` names those that must be there (``c,opencl``): their absence is a failure.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Final

import pytest

import gate
from ptir.backend import registry
from ptir.backend.contract import Target

DISABLED: Final = "-cl-opt-disable"


def device(name: str) -> Target:
    """The first device of the backend called ``name``."""
    found = {status.name: status for status in registry.status_table()}.get(name)
    missing = found is None or found.status == "unavailable"
    if missing and name not in os.environ.get("PTIR_REQUIRE_BACKENDS", "").split(","):
        pytest.skip(found.reason if found else f"ptir-backend-{name} is not installed")
    return registry.get(name)


def tool(name: str) -> str:
    """The path of a program; ``PTIR_REQUIRE_TOOLS`` names those whose absence is a failure."""
    found = shutil.which(name)
    if found is None and name in os.environ.get("PTIR_REQUIRE_TOOLS", "").split(","):
        pytest.fail(f"{name} is not installed; `apt-get install {name}`")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def without_optimizer(target: Target) -> None:
    """In the gate, let PoCL leave out its optimizer: most of the time of what compiles there.

    It takes seconds for the unrolled tile of one product. What these tests are about is the text;
    what the optimizer makes of it is held by the slice of the corpus in CI, and by `make prove`.
    """
    found: Any = target.backend.opened(target.device).device  # type: ignore[attr-defined]
    if gate.seed() is not None and DISABLED not in found._options:
        found._options.append(DISABLED)


def off_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the gate, let a process keep its kernels to itself.

    PoCL compiles each kernel a second time for the binary that is kept.
    """
    if gate.seed() is not None:
        monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
