"""What ptir costs besides arithmetic: start-up, Python per decode step, peak memory.

The Python share of a step is the time of a step of a model with GPT-2's twelve layers and almost
no arithmetic (width 48, 64 tokens of vocabulary), over the time of a real GPT-2 124M step in
alternating rounds. Memory is the process's anonymous resident memory, sampled while it runs.

    python benchmarks/footprint.py --json out.json
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HELP = """
import contextlib, io
from ptir.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["--help"])
"""


def seconds_in_process(work: str, repeats: int = 9) -> float:
    """Median seconds of ``work`` in fresh interpreters (the interpreter's own start excluded)."""
    code = f"import time; t = time.perf_counter()\n{work}\nprint(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        for _ in range(repeats)
    ]
    return statistics.median(float(run.stdout.decode().split()[-1]) for run in runs)


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


class PeakMemory:
    """Samples anonymous memory every 2 ms inside a ``with`` block; ``peak`` is in bytes."""

    def __enter__(self) -> PeakMemory:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.002):
            self.peak = max(self.peak, anonymous_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def session_of(model: Any, capacity: int) -> Any:
    """A decoding session of one row."""
    from ptir.runtime.session import Session

    return Session.of(model, 1, capacity)


def stepper(model: Any) -> Callable[[], float]:
    """A function that decodes one token and returns its seconds."""
    import numpy as np

    session = session_of(model, min(1024, model.context))
    session.pick(session.prefill([[1, 2, 3]]))
    active = np.ones(1, np.bool_)

    def step() -> float:
        began = time.perf_counter()
        session.advance(active)
        return time.perf_counter() - began

    return step


def python_share(real: Any, hollow: Any, steps: int) -> dict[str, Any]:
    """Medians of alternating steps of both models, and their ratio."""
    works = {"real": stepper(real), "hollow": stepper(hollow)}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(steps + 8):
        for name, work in works.items():
            spent = work()
            if number >= 8:
                seconds[name].append(spent)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    return {**medians, "share": medians["hollow"] / medians["real"]}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--backend", default="ref")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = {
        "import ptir": seconds_in_process("import ptir"),
        "ptir --help": seconds_in_process(HELP),
    }

    import ptir
    from ptir.models import table

    table.load_modules()
    hollow_config = dict(table.preset("gpt2")[1]) | {"n_embd": 48, "vocab_size": 64}
    table.MODELS["gpt2"].presets["gpt2-hollow"] = hollow_config  # type: ignore[index]
    ptir.load_model("random:gpt2-hollow", backend=options.backend).generate([1], max_tokens=2)
    baseline = anonymous_bytes()
    real = ptir.load_model("random:gpt2", backend=options.backend)
    with PeakMemory() as memory:
        real.generate(list(range(100, 612)), max_tokens=32, ignore_eos=True)
    cache = sum(t.nbytes for pair in real.state_types(1, 576) for t in pair)
    weights = sum(real.store.type(name).nbytes for name in real.store.source.names())
    hollow = ptir.load_model("random:gpt2-hollow", backend=options.backend)
    share = python_share(real, hollow, options.steps)
    peak = {
        "peak_above_baseline": memory.peak - baseline,
        "weights_and_cache": weights + cache,
        "ratio": (memory.peak - baseline) / (weights + cache),
    }
    result = {"start_seconds": start, "python": share, "memory": peak}
    for name, seconds in start.items():
        print(f"{name:12} {seconds * 1e3:7.1f} ms")
    hollow_ms, real_ms = share["hollow"] * 1e3, share["real"] * 1e3
    print(f"python per step {hollow_ms:.2f} ms of {real_ms:.2f} ms: {share['share']:.1%}")
    print(f"peak anonymous memory {peak['ratio']:.3f} x (weights + cache)")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
