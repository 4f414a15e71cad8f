"""From a cold process to the first token of GPT-2, with kernels that were built before.

GPT-2 124M is exported once with random weights, a first run fills the kernel cache, and then every
repetition is a fresh ``ptir run`` whose wall time is measured from outside.

    python benchmarks/cold_start.py --backend opencl --json out.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CODE = "import sys\nfrom ptir.cli import main\nsys.exit(getattr(main, 'script', main.main)())"
"""What the installed script does, in a tree that was not installed; old ones end as Python does."""


def ptir(*arguments: str, cache: Path, more: Mapping[str, str] | None = None) -> str:
    """What a run of ``ptir`` prints; ``more`` variables are in its environment."""
    environment = {**os.environ, **(more or {}), "PTIR_CACHE_DIR": str(cache)}
    environment["PYTHONDONTWRITEBYTECODE"] = ""  # an installed package has its byte code
    environment["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def processor_seconds() -> float:
    """What finished child processes used of all processors: steadier than wall time when busy."""
    times = os.times()
    return times.children_user + times.children_system


def first_token(
    model: Path | str,
    backend: str,
    dtype: str,
    cache: Path,
    more: Mapping[str, str] | None = None,
) -> dict[str, float]:
    began, used = time.perf_counter(), processor_seconds()
    options = ("-p", "It was", "-n", "1", "--temp", "0", "--dtype", dtype, "--backend", backend)
    stats = json.loads(ptir("run", str(model), *options, "--json", cache=cache, more=more))["stats"]
    whole = time.perf_counter() - began
    inside = stats["load_seconds"] + stats["prompt_seconds"]
    return {
        "whole": whole,
        "start": whole - inside,
        "load": stats["load_seconds"],
        "prompt": stats["prompt_seconds"],
        "processor": processor_seconds() - used,
    }


def beside(model: str, backends: list[str], repeats: int) -> dict[str, list[float]]:
    """Seconds of each backend in alternating runs, behind two that fill the kernel cache."""
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch)
        found: dict[str, list[float]] = {backend: [] for backend in backends}
        for number in range(repeats + 2):
            for backend in backends:
                whole = first_token(model, backend, "f32", cache)["whole"]
                if number >= 2:
                    found[backend].append(whole)
    return found


def measure(backend: str, dtype: str, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        model, cache = Path(scratch) / "gpt2", Path(scratch) / "cache"
        ptir("convert", "random:gpt2", str(model), cache=cache)
        unbuilt = first_token(model, backend, dtype, cache)
        runs = [first_token(model, backend, dtype, cache) for _ in range(repeats)]
    rows = {
        part: {
            "median": statistics.median(run[part] for run in runs),
            "min": min(run[part] for run in runs),
            "max": max(run[part] for run in runs),
        }
        for part in runs[0]
    }
    return {"backend": backend, "dtype": dtype, "seconds": rows, "empty_cache": unbuilt["whole"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measure(given.backend, given.dtype, given.repeats)
    for part, row in found["seconds"].items():
        print(f"{part:9} {row['median']:6.2f} s  ({row['min']:.2f} to {row['max']:.2f})")
    empty = found["empty_cache"]
    print(f"with an empty kernel cache: {empty:.2f} s; with a full one the limit is 1.5 s")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
