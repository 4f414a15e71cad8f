"""Where and with what figures were measured: what stands in front of them in a JSON file."""

from __future__ import annotations

import argparse
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

INFORMATION = Path("/proc/cpuinfo")
DISTRIBUTIONS = ("ptir-core", "numpy", "llama-cpp-python", "torch")
"""Whose versions a reader needs; those that are not installed are left out."""


def origin(given: argparse.Namespace) -> dict[str, Any]:
    """The machine, the day, the versions and what was asked for."""
    return {
        "machine": platform.platform(),
        "processor": processor(),
        "processors": os.cpu_count(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "versions": versions(given.llama),
        "backend": given.backend,
        "threads": given.threads,
        "rounds": given.rounds,
    }


def processor() -> str:
    """The processor's name for itself, where the system tells it."""
    lines = INFORMATION.read_text(encoding="utf-8").splitlines() if INFORMATION.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions(llama: bool) -> dict[str, str]:
    """Installed versions; of llama.cpp only where it is measured."""
    names = [name for name in DISTRIBUTIONS if llama or name != "llama-cpp-python"]
    found = ((d.metadata["Name"], d.version) for d in metadata.distributions())
    installed = {name.lower().replace("_", "-"): version for name, version in found}
    return {name: installed[name] for name in names if name in installed}
