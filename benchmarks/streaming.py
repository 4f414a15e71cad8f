"""What a memory budget costs: a model whose weights do not fit, beside the same one without budget.

A Llama of random weights is written to a folder once. In every round a token is decoded under the
budget and without one, and as many bytes as the weights have are read through a mapping of a file
in the same folder, by as many threads, in pieces that are dropped behind: what the weights come
from. With --cold the files leave the page cache before each, so that they come from the disk. Last,
processes whose anonymous memory is limited run the model, with the budget and without.

    python benchmarks/streaming.py --backend c --budget 64MiB --json out.json
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from footprint import PeakMemory, anonymous_bytes, session_of

SIZES = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
"""About 300 MB in bf16."""
PROMPT = [1, 2, 3]
TOKENS = 8
SLACK = 48 << 20
"""Bytes that a process takes besides: stacks of threads, modules, a compiler's output."""
LIMITED = """
import re, resource, sys
from pathlib import Path
import ptir
path, backend, budget, more = sys.argv[1:]
model = ptir.load_model(path, backend=backend, device_memory=budget or None)
now = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
if more:
    resource.setrlimit(resource.RLIMIT_DATA, (now + int(more), now + int(more)))
print(model.generate([1, 2, 3], max_tokens=8, temperature=0, ignore_eos=True).token_ids)
"""
"""Generates when its data may grow by so many bytes more, and has an empty cache folder."""


def written(folder: Path) -> Path:
    """The model's folder."""
    from ptir.checkpoint import save_folder
    from ptir.models import table
    from ptir.runtime.specs import random_checkpoint
    from ptir.types import BF16

    table.load_modules()
    config = dict(table.preset("llama-1b")[1]) | SIZES
    table.MODELS["llama"].presets["llama-streamed"] = config  # type: ignore[index]
    made = replace(random_checkpoint("llama-streamed", 0), tokenizer=None)
    return save_folder(made, folder / "model", dtype=BF16)


class Source:
    """A file of some bytes, read through its mapping in pieces that are dropped behind."""

    def __init__(self, path: Path, nbytes: int, piece: int, threads: int) -> None:
        self.path, self._piece, self._threads = path, piece, threads
        with path.open("wb") as file:
            for first in range(0, nbytes, 1 << 20):
                file.write(os.urandom(min(1 << 20, nbytes - first)))
            os.fsync(file.fileno())
        with path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def seconds(self) -> float:
        """Seconds for all of it."""
        import numpy as np

        whole = np.frombuffer(self._mapping, np.uint64, len(self._mapping) // 8)
        each = self._piece // 8 // self._threads
        with ThreadPoolExecutor(self._threads) as pool:
            began = time.perf_counter()
            for first in range(0, len(whole), each * self._threads):
                starts = [first + n * each for n in range(self._threads)]
                list(pool.map(lambda n: int(np.bitwise_or.reduce(whole[n : n + each])), starts))
                start = first * 8 // mmap.PAGESIZE * mmap.PAGESIZE
                length = min(self._piece, len(self._mapping) - start)
                self._mapping.madvise(mmap.MADV_DONTNEED, start, length)
            return time.perf_counter() - began


def stepper(model: Any) -> Callable[[], float]:
    """A function that decodes one token and returns its seconds."""
    import numpy as np

    session = session_of(model, 256)
    with model.policies():
        session.pick(session.prefill([PROMPT]))

    def step() -> float:
        began = time.perf_counter()
        session.advance(np.ones(1, np.bool_))
        return time.perf_counter() - began

    return step


def forget(folders: list[Path]) -> None:
    """Have the files' pages leave the page cache, as far as nobody maps them."""
    for path in (file for folder in folders for file in folder.rglob("*") if file.is_file()):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measured(
    given: argparse.Namespace, folder: Path, streamed: Any, plain: Any | None
) -> dict[str, Any]:
    """Rounds of a token under the budget, one without, and the same bytes read."""
    from ptir.params.processors import usable_processors

    token = stepper(streamed)
    other = None if plain is None else stepper(plain)
    token()
    plan = streamed.steps.advance(1, 256).plans[-1]
    nbytes = sum(plan.sizes.values())
    threads = int(os.environ.get("PTIR_C_THREADS", usable_processors()))
    source = Source(folder / "bytes", nbytes, plan.room // 2, threads)
    cold = [folder] if given.cold else []
    rounds: dict[str, list[float]] = {"source": [], "budget": [], "no budget": []}
    works = {"source": source.seconds, "budget": token, "no budget": other}
    for number in range(given.rounds + 2):
        for name, work in works.items():
            if work is not None:
                forget(cold)
                seconds = work()
                if number >= 2:
                    rounds[name].append(seconds)
    ratios = [b / s for b, s in zip(rounds["budget"], rounds["source"], strict=True)]
    return {
        "weight_bytes": nbytes,
        "read_per_token": plan.schedule.read,
        "stages": len(plan.schedule.stages),
        "source_bytes_per_second": spread([nbytes / s for s in rounds["source"]]),
        "token_over_source": spread(ratios),
        "seconds": {name: spread(found) for name, found in rounds.items() if found},
        "resident_at_most": streamed.store.streamed.resident.peak,
    }


def limited(path: Path, backend: str, budget: str, more: int | None) -> str:
    """What such a process prints; what ended it where it prints nothing."""
    with tempfile.TemporaryDirectory(dir=path.parent) as cache:
        command = [sys.executable, "-c", LIMITED, str(path), backend, budget, str(more or "")]
        environment = os.environ | {"PTIR_CACHE_DIR": cache}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout.strip() or (done.stderr.strip().splitlines() or ["it was ended"])[-1]


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--budget", default="64MiB")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cold", action="store_true", help="From the disk, not the page cache.")
    parser.add_argument("--folder", type=Path, help="Where files are written; default: a new one.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch)
        os.environ["PTIR_CACHE_DIR"] = str(folder / "cache")
        import ptir
        from ptir.params.streaming import memory_budget

        path = written(folder)
        budget = memory_budget(given.budget)
        options: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        streamed = ptir.load_model(path, backend=given.backend, device_memory=given.budget)
        found = streamed.generate(PROMPT, **options).token_ids  # packs what is not packed
        before = anonymous_bytes()
        with PeakMemory() as memory:
            again = streamed.generate(PROMPT, **options).token_ids
        plain = None if given.cold else ptir.load_model(path, backend=given.backend)
        result = measured(given, folder, streamed, plain)
        result |= {"budget": budget, "anonymous_above_loaded": max(0, memory.peak - before)}
        wanted = limited(path, given.backend, "", None)
        more = budget + SLACK
        result["same_tokens"] = found == again and str(found) == wanted
        result["limited_to"] = more
        result["limited_with_budget"] = limited(path, given.backend, given.budget, more) == wanted
        result["limited_without_budget"] = limited(path, given.backend, "", more)
    for name, value in result.items():
        print(f"{name:24} {value}")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
