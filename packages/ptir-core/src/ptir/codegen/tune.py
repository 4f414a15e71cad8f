"""Measures tiles on a device: the products of a model's own programs, written with other sizes.

While ``tuning`` lasts, programs that are compiled are noted. At its end their products are timed
with the device's tiles and with candidates, one change after another, and what was fastest is kept
for every later process (``ptir.codegen.tuned``).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ptir.backend.kernel import KernelDevice, Memory
from ptir.codegen import tuned
from ptir.codegen.binaries import built
from ptir.codegen.families import FAMILIES
from ptir.codegen.fuse import Fused
from ptir.codegen.kernel import Group, Kernel, Site, scratch_value
from ptir.codegen.noted import NOTED
from ptir.codegen.tiles import Tiles

FAMILY: Final = "product"
"""The family that is measured: what nearly all time of a model goes into."""
CHANGES: Final[tuple[tuple[Mapping[str, int], ...], ...]] = (
    tuple({"rows": r, "panels": p} for r, p in ((4, 3), (6, 1), (6, 4), (8, 2), (8, 3), (12, 2))),
    tuple({"byte_rows": r, "byte_panels": p} for r, p in ((2, 4), (4, 2), (4, 3), (6, 2))),
    tuple(
        {"digit_rows": r, "digit_panels": p} for r, p in ((1, 3), (1, 4), (2, 2), (2, 3), (4, 1))
    ),
    tuple({"chains": n} for n in (1, 2, 4, 8)),
    tuple({"ahead": n} for n in (0, 4096, 8192, 16384)),
    tuple({"spread": n} for n in (1, 2, 4, 8)),
)
"""What is tried, one line after the other, each on top of the best so far."""
MARGIN: Final = 0.03
"""How much faster a change must be to be taken."""
REPEATS: Final = 5
ROTATED: Final = 64 << 20
"""Bytes of weights that runs go through in turn, so that no cache holds them all."""
TURNS: Final = 16
"""Most of them, however small."""
MOST: Final = 6
"""Most kernels that are measured, those with most bytes first."""

Timer = Callable[[Kernel, "Case"], float]


@dataclass(frozen=True)
class Case:
    """A product of a noted program."""

    fused: Fused
    group: Group
    device: KernelDevice

    def kernel(self, tiles: Tiles) -> Kernel:
        """The product as it is written with ``tiles``."""
        device = self.device
        site = Site(self.fused.graph, self.fused.is_stored, device.dialect, device.traits, tiles)
        return FAMILIES[self.group.family].write(self.group, site)

    def nbytes(self, kernel: Kernel) -> list[int]:
        """The bytes behind each argument."""
        types = {scratch_value(kernel.group, n): type for n, type in enumerate(kernel.scratch)}
        found = (types.get(v) or self.fused.graph.type(v) for v in kernel.values)
        return [max(1, type.nbytes) for type in found]


@dataclass
class Outcome:
    """What a tuning found: filled in at its end."""

    tiles: Tiles
    before: Tiles
    kernels: int = 0
    speedup: float = 1.0
    """How much faster the products are than before, in the geometric mean."""

    def facts(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return {**asdict(self), "changed": self.tiles != self.before}


@contextmanager
def tuning(device: KernelDevice, timer: Timer | None = None) -> Iterator[Outcome]:
    """While it lasts programs are noted; then their products are measured and the tiles chosen."""
    noted: list[Fused] = []
    before = tuned.chosen(device)
    outcome = Outcome(before, before)
    NOTED[id(device)] = noted
    try:
        yield outcome
    finally:
        del NOTED[id(device)]
    cases = _distinct(device, noted, before)
    outcome.kernels = len(cases)
    if cases:
        search = _Search(cases, timer or run_time)
        outcome.tiles = search.best(before)
        outcome.speedup = 1 / search.relative(outcome.tiles, before)
        tuned.choose(device, outcome.tiles)


def _distinct(device: KernelDevice, noted: Sequence[Fused], tiles: Tiles) -> list[Case]:
    """Products of different text, those with most bytes first."""
    found: dict[str, tuple[int, Case]] = {}
    for fused in noted:
        for group in fused.groups:
            if group.family == FAMILY:
                case = Case(fused, group, device)
                kernel = case.kernel(tiles)
                found.setdefault(kernel.text(device.dialect, "k"), (sum(case.nbytes(kernel)), case))
    ordered = sorted(found.values(), key=lambda each: -each[0])
    return [case for _, case in ordered[:MOST]]


class _Search:
    """Tries changes one after the other; kernels of equal text and items are not timed again."""

    def __init__(self, cases: Sequence[Case], timer: Timer) -> None:
        self._cases, self._timer = cases, timer
        self._seconds: dict[tuple[int, str, int], float] = {}

    def best(self, tiles: Tiles) -> Tiles:
        """The tiles that no single change improves by more than ``MARGIN``."""
        for changes in CHANGES:
            tried = [replace(tiles, **change) for change in changes]
            fastest = min(tried, key=lambda candidate: self.relative(candidate, tiles))
            if self._is_better(fastest, tiles):
                tiles = fastest
        return tiles

    def _is_better(self, tiles: Tiles, than: Tiles) -> bool:
        """Whether it is by ``MARGIN``, twice: machines drift while others are tried."""
        if self.relative(tiles, than) >= 1 - MARGIN:
            return False
        self._seconds.clear()
        return self.relative(tiles, than) < 1 - MARGIN

    def relative(self, tiles: Tiles, than: Tiles) -> float:
        """The time with ``tiles`` as a part of that with others, in the geometric mean."""
        ratios = (self._time(n, tiles) / self._time(n, than) for n in range(len(self._cases)))
        return math.exp(statistics.fmean(map(math.log, ratios)))

    def _time(self, number: int, tiles: Tiles) -> float:
        case = self._cases[number]
        kernel = case.kernel(tiles)
        key = (number, kernel.body, kernel.items)
        if key not in self._seconds:
            self._seconds[key] = self._timer(kernel, case)
        return self._seconds[key]


def run_time(kernel: Kernel, case: Case) -> float:
    """Seconds of one launch: the median of several rounds over weights of ``ROTATED`` bytes."""
    device = case.device
    text = kernel.text(device.dialect, "measured")
    made = built(device, f"{device.dialect.prelude()}\n\n{text}")
    sizes = case.nbytes(kernel)
    largest = sizes.index(max(sizes))
    shared = [_filled(device, n) for n in sizes]
    count = max(1, min(TURNS, ROTATED // sizes[largest]))
    turns: list[Any] = []
    for _ in range(count):
        memories = [*shared]
        if turns:
            memories[largest] = _filled(device, sizes[largest])
        turn = device.kernel(made, "measured", len(memories))
        for position, memory in enumerate(memories):
            device.bind(turn, position, memory)
        turns.append((turn, memories))
    rounds = [_round(device, [t for t, _ in turns], kernel) for _ in range(REPEATS + 1)]
    return statistics.median(rounds[1:])


def _round(device: KernelDevice, turns: Sequence[Any], kernel: Kernel) -> float:
    began = time.perf_counter()
    for turn in turns:
        device.launch(turn, kernel.items, kernel.members)
    device.finish()
    return (time.perf_counter() - began) / len(turns)


def _filled(device: KernelDevice, nbytes: int) -> Memory:
    """Memory that was written: as f32, f16 or bf16 it holds numbers near one."""
    import numpy as np

    memory = device.allocate(nbytes)
    device.write(memory, np.full(nbytes, 0x3F, np.uint8))
    return memory
