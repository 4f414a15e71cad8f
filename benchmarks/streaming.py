"""What a memory budget costs: a model whose weights do not fit, beside the same one without budget.

A Llama of random weights is written to a folder once. In every round a token is decoded under the
budget and without one, and as many bytes as the weights have are read through a mapping of a file
in the same folder, by as many threads, in pieces that are dropped behind: what the weights come
from. With --cold the files leave the page cache before each, so that they come from the disk. Last,
processes whose anonymous memory the kernel limits (RLIMIT_DATA) run the model, with the budget and
without; they say what the device counts, and what the kernel counts as resident at once, sampled:
pages of files of weights (smaps), and anonymous memory above that of a loaded model (RssAnon).

    python benchmarks/streaming.py --backend c --budget 64MiB --json out.json
    python benchmarks/streaming.py --backend c --budget 512MiB --gib 2   # embedding and head cut
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
import json, re, resource, sys, threading
from pathlib import Path
import ptir
path, backend, budget, more = sys.argv[1:]
def status(name):
    found = re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024
def of_weights():
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(".safetensors") or "/weights/" in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
model = ptir.load_model(path, backend=backend, device_memory=budget or None)
if more:
    most = status("VmData") + int(more)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
before, peaks, over = status("RssAnon"), [0, 0], threading.Event()
def watch():
    while not over.wait(0.01):
        peaks[:] = max(peaks[0], of_weights()), max(peaks[1], status("RssAnon") - before)
thread = threading.Thread(target=watch)
thread.start()
how = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
found = [model.generate([1, 2, 3], **how).token_ids for _ in range(2)]
over.set()
thread.join()
stats = model.target.backend.memory_stats(model.target.device)
stream = model.store.streamed
print(json.dumps({
    "tokens": found[0] if found[0] == found[1] else found,
    "device_peak_bytes": stats and stats.peak_bytes,
    "resident_parameters_at_most": stream and stream.resident.peak,
    "kernel_counts_of_weights_at_most": peaks[0],
    "kernel_counts_anonymous_above_loaded": peaks[1],
}))
"""
"""Generates when its data may grow by so many bytes more, and has an empty cache folder."""


def sizes_of(gib: float, itemsize: int) -> dict[str, int]:
    """A model of about so many GiB, of which embedding and head have three eighths."""
    hidden, inner = 2048, 5632
    vocabulary = int(gib * 3 / 16 * 2**30) // (hidden * itemsize) // 128 * 128
    layer = (2 * hidden * hidden + 2 * hidden * hidden // 4 + 3 * hidden * inner) * itemsize
    return SIZES | {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": max(1, round(gib * 5 / 8 * 2**30 / layer)),
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    }


def written(folder: Path, gib: float | None, dtype: str) -> Path:
    """The model's folder."""
    from ptir.checkpoint import save_folder
    from ptir.models import table
    from ptir.runtime.specs import random_checkpoint
    from ptir.types import DTYPES

    table.load_modules()
    stored = DTYPES[dtype]
    sizes = SIZES if gib is None else sizes_of(gib, stored.itemsize)
    config = dict(table.preset("llama-1b")[1]) | sizes
    table.MODELS["llama"].presets["llama-streamed"] = config  # type: ignore[index]
    made = replace(random_checkpoint("llama-streamed", 0), tokenizer=None)
    return save_folder(made, folder / "model", dtype=stored)


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
        "rows": {name: list(rows.outputs) for name, rows in plan.rows.items()},
    }


def limited(path: Path, backend: str, budget: str, more: int | None) -> dict[str, Any]:
    """What such a process says; what ended it where it says nothing."""
    with tempfile.TemporaryDirectory(dir=path.parent) as cache:
        command = [sys.executable, "-c", LIMITED, str(path), backend, budget, str(more or "")]
        environment = os.environ | {"PTIR_CACHE_DIR": cache}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.stdout:
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    return {"error": (done.stderr.strip().splitlines() or [f"it was ended: {done.returncode}"])[-1]}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--budget", default="64MiB")
    parser.add_argument("--gib", type=float, help="GiB of weights; default: 0.3 in bf16.")
    parser.add_argument("--dtype", default="bf16", help="How they are stored.")
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

        path = written(folder, given.gib, given.dtype)
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
        print(json.dumps(result), flush=True)  # processes take long
        wanted = limited(path, given.backend, "", None)
        more = budget + SLACK
        result["same_tokens"] = found == again == wanted.get("tokens")
        result["limited_to"] = more
        result["limited_with_budget"] = under = limited(path, given.backend, given.budget, more)
        result["same_tokens_limited"] = under.get("tokens") == wanted.get("tokens")
        result["limited_without_budget"] = limited(path, given.backend, "", more)
    for name, value in result.items():
        print(f"{name:24} {value}")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
