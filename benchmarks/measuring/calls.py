"""Calls that do the same with ptir and with other libraries, in one process, in alternation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

PAUSE: Final = 0.05
"""Seconds before each: threads of a peer keep a core busy for a while after a call."""
BARS: Final = {"torch": 1.5, "onnxruntime": 1.2, "transformers": 1.5}
"""How many times as fast as the best of each library ptir is to be."""
CLOCKS: Final = {"wall": time.perf_counter, "cpu": time.process_time}
"""``cpu`` counts the seconds of processors: a machine that others use too tells little else."""
OURS: Final = "ptir"

Samples = dict[str, list[float]]


def alternating(
    calls: Mapping[str, Callable[[], Any]], rounds: int, repeats: int, clock: str
) -> Samples:
    """Seconds of a call by library, the mean of so many repeats for each round."""
    now = CLOCKS[clock]
    samples: Samples = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(PAUSE)
            call()
            began = now()
            for _ in range(repeats):
                call()
            samples[name].append((now() - began) / repeats)
    return samples


def report(subject: str, samples: Samples, own_name: str = OURS) -> Iterator[str]:
    """A line for each library: median, spread, and how many times as fast ptir is; then bars.

    ``own_name`` is the row that all are compared with.
    """
    own = samples[own_name]
    for name, seconds in samples.items():
        ratios = [theirs / mine for theirs, mine in zip(seconds, own, strict=True)]
        middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
        shown = f"{middle * 1e3:8.1f} ms [{least * 1e3:.1f}, {most * 1e3:.1f}]"
        ratio = f"{statistics.median(ratios):.2f} x [{min(ratios):.2f}, {max(ratios):.2f}]"
        yield f"{subject}  {name:25} {shown:32} {own_name} is {ratio}"
    for kind, bar in BARS.items():
        columns = [seconds for name, seconds in samples.items() if name.startswith(kind)]
        if columns:
            best = [min(column) for column in zip(*columns, strict=True)]
            ratio = statistics.median(t / mine for t, mine in zip(best, own, strict=True))
            yield f"{subject}  the best of {kind}: {ratio:.2f} x, bar {bar}"
