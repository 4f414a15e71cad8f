"""Layer norm and softmax over rows in memory, beside copying the same bytes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from measuring import bars
from measuring.bars import Row
from measuring.workers import Worker

ROWS, WIDTH = 1 << 16, 768
"""201 MB: more than caches hold."""
REPEATS = 3


def best(work: Callable[[], None]) -> float:
    """Bytes per second, read and written, of the fastest of several runs."""
    seconds = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        seconds = min(seconds, time.perf_counter() - began)
    return 2 * 4 * ROWS * WIDTH / seconds


class RowKernels:
    """The two functionals as compiled programs, run before so that their memory is paged in."""

    def __init__(self, backend: str) -> None:
        import ptir
        from ptir import functional as F

        target = ptir.backend(backend)
        self._target = target
        self._x = ptir.tensor(np.ones((ROWS, WIDTH), np.float32), backend=target)
        self._scale = ptir.tensor(np.ones(WIDTH, np.float32), backend=target)
        self._norm = ptir.jit(lambda x, w: F.layer_norm(x, w, w))
        self._softmax = ptir.jit(lambda x, w: F.softmax(x))
        self._negate = ptir.jit(lambda x, w: -x)
        self._source = [np.ones((ROWS // 2, WIDTH), np.float32) for _ in range(2)]
        self._copies = [np.empty_like(part) for part in self._source]
        self._pool = ThreadPoolExecutor(2)
        for name in ("layer_norm", "softmax", "negate", "copy"):
            self.bandwidth(name)

    def bandwidth(self, name: str) -> float:
        """Bytes per second of one of the works."""
        if name == "copy":
            return best(self._copy)
        work: Any = getattr(self, {"layer_norm": "_norm"}.get(name, f"_{name}"))

        def run() -> None:
            work(self._x, self._scale)
            self._target.backend.synchronize(self._target.device)

        return best(run)

    def _copy(self) -> None:
        for _ in self._pool.map(np.copyto, self._copies, self._source):
            pass


def kernel_rows(given: argparse.Namespace) -> list[Row]:
    """Layer norm and softmax over copying."""
    worker = Worker("rows", backend=given.backend)
    names = ("copy", "negate", "layer_norm", "softmax")
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(given.rounds):
        for name in names:
            found[name].append(worker.call("bandwidth", name))
    worker.close()
    rows = [Row("rows", "copy by two threads", [b / 1e9 for b in found["copy"]], "GB/s")]
    for name in names[1:]:
        shares = [b / c for b, c in zip(found[name], found["copy"], strict=True)]
        bar = None if name == "negate" else bars.ROWS
        rows.append(Row("rows", f"{name}, share of copying", shares, "%", bar))
    return rows
