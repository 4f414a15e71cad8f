"""The long proofs of a release: a whole conformance run on every device, a report each.

``python scripts/evidence.py FOLDER [NAME...]`` runs what is named (default: all), goes on with what
was interrupted, and prints the headlines. It needs everything installed for the interpreter that
runs it, PoCL and ``ptir-backend-opencl[cpu]`` too, and hours of processor time. ``ptir-conformance
matrix`` reads the reports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
COOP: Final = {"PTIR_SCHEDULE": "coop"}


@dataclass(frozen=True)
class Run:
    """A backend, and what stands in the environment of its run."""

    backend: str
    environment: dict[str, str] = field(default_factory=dict[str, str])


RUNS: Final = {
    "ref": Run("ref"),
    "c": Run("c"),
    "pocl": Run("opencl:portable"),
    "intel": Run("opencl:intel"),
    "coop-pocl": Run("opencl:portable", COOP),
    "coop-intel": Run("opencl:intel", COOP),
    "cuda-host": Run("cuda-host", {"PYTHONPATH": str(ROOT / "tests/cupy/host")}),
}
ONCE: Final = {"PTIR_REBUILD_KERNELS": "1", "POCL_KERNEL_CACHE": "0", "PYOPENCL_NO_CACHE": "1"}
"""Kernels that nobody needs again stay off the disk."""


def main(folder: Path, names: list[str]) -> int:
    """Run them, one after the other; the exit code says whether all were conformant."""
    unknown = sorted(set(names) - set(RUNS))
    if unknown:
        print(f"no run is called {', '.join(unknown)}; there are {', '.join(RUNS)}")
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    codes = [_run(folder, name) for name in names or RUNS]
    return max(codes)


def _run(folder: Path, name: str) -> int:
    """One whole run; an unfinished report of the same code is gone on with."""
    run, report = RUNS[name], folder / f"{name}.jsonl"
    environment = os.environ | ONCE | run.environment
    if "PYTHONPATH" in run.environment and "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    command = [sys.executable, "-m", "ptir_testsuite", "run", "--backend", run.backend]
    command += ["--jobs", str(os.cpu_count())]
    command += ["--json", str(report), *(["--resume"] if report.exists() else [])]
    began = time.monotonic()
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    last = (made.stdout + made.stderr).strip().splitlines()[-1:] or ["nothing was printed"]
    print(f"{name}: {last[0]} ({time.monotonic() - began:.0f} s)", flush=True)
    return made.returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
