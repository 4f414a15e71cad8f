"""Measures tiles on a device: the kernels of a model's own programs, written with other sizes.

While ``tuning`` lasts, programs that are compiled are recorded. At its end their linear kernels,
and where kernels are cooperative their attention and row reductions, are timed with the device's
tiles and with candidates, one change after another, and what was fastest is kept for every later
process (``ptir.codegen.schedules.tuned_tiles``).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ptir.backend.kernel import KernelDevice, Memory
from ptir.codegen.artifact.binaries import built
from ptir.codegen.expressions.expr import interned
from ptir.codegen.families import FAMILIES
from ptir.codegen.planning.fuse import FusionPlan
from ptir.codegen.schedules import tuned_tiles
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel
from ptir.codegen.schedules.schedules import schedule_of
from ptir.codegen.schedules.tiles import Tiles
from ptir.codegen.tuning.recorder import Recorded

Changes = tuple[tuple[Mapping[str, int], ...], ...]

CANDIDATES: Final[Changes] = (
    tuple(
        {"gemm_rows": r, "gemm_panels": p}
        for r, p in ((4, 3), (6, 1), (6, 4), (8, 2), (8, 3), (12, 2))
    ),
    tuple({"int8_rows": r, "int8_panels": p} for r, p in ((2, 4), (4, 2), (4, 3), (6, 2))),
    tuple(
        {"slice_rows": r, "slice_panels": p} for r, p in ((1, 3), (1, 4), (2, 2), (2, 3), (4, 1))
    ),
    tuple({"accumulators": n} for n in (1, 2, 4, 8)),
    tuple({"prefetch_bytes": n} for n in (0, 4096, 8192, 16384)),
    tuple({"quantized_prefetch_bytes": n} for n in (0, 4096, 8192, 16384)),
    tuple({"register_entries": n} for n in (1, 512, 1024, 2048)),
    tuple({"workgroups_per_unit": n} for n in (1, 2, 4, 8)),
)
"""What is tried, one line after the other, each on top of the best so far."""
COOPERATIVE_CANDIDATES: Final[Changes] = (
    tuple({"attention_workgroup_size": n} for n in (64, 128, 256)),
    tuple(
        {"attention_block_rows": r, "attention_block_keys": k}
        for r, k in ((8, 32), (8, 64), (16, 32), (16, 64))
    ),
    tuple({"min_keys_per_split": n} for n in (64, 128, 256, 512, 1024)),
    tuple({"workgroups_per_unit": n} for n in (1, 2, 4, 8)),
    tuple({"row_workgroup_size": n} for n in (128, 256, 512)),
    tuple({"row_elements_per_thread": n} for n in (4, 8, 16)),
)
"""What is tried where kernels are cooperative."""
MEASURED: Final[Mapping[str, Changes]] = {"serial": CANDIDATES, "coop": COOPERATIVE_CANDIDATES}
"""What is tried by schedule, on the kernels of families with that in ``Family.measured``."""
MARGIN: Final = 0.03
"""How much faster a change must be to be taken."""
REPEATS: Final = 5
ROTATED: Final = 64 << 20
"""Bytes of weights that runs go through in rotation, so that no cache holds them all."""
LAUNCHES_PER_ROUND: Final = 16
"""Most of them, however small."""
MOST: Final = 6
"""Most kernels of a family that are measured, those with most bytes first."""

Timer = Callable[[Kernel, "TuningTask"], float]


@dataclass(frozen=True)
class TuningTask:
    """A kernel of a recorded program."""

    fused: FusionPlan
    fusion: Fusion
    device: KernelDevice

    def kernel(self, tiles: Tiles) -> Kernel:
        """The kernel as it is written with ``tiles``."""
        device, cooperative = self.device, schedule_of(self.device) == "coop"
        graph, stored = self.fused.graph, self.fused.is_stored
        context = EmitContext(graph, stored, device.dialect, device.traits, tiles, cooperative)
        return FAMILIES[self.fusion.family].kernel(self.fusion, context)

    def nbytes(self, kernel: Kernel) -> dict[int, int]:
        """The bytes behind each value that its launches use."""
        types = kernel.scratch_types
        values = dict.fromkeys(value for each in kernel.launches for value in each.values)
        return {v: max(1, (types.get(v) or self.fused.graph.type(v)).nbytes) for v in values}


@dataclass
class TuningResult:
    """What a tuning found: filled in at its end."""

    tiles: Tiles
    before: Tiles
    kernels: int = 0
    speedup: float = 1.0
    """How much faster the kernels are than before, in the geometric mean."""

    def facts(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return {**asdict(self), "changed": self.tiles != self.before}


@contextmanager
def tuning(opened: Recorded, timer: Timer | None = None) -> Iterator[TuningResult]:
    """While it lasts programs are recorded; then their kernels are measured, the tiles chosen."""
    recorded: list[FusionPlan] = []
    device, before = opened.device, tuned_tiles.tiles_for(opened.device)
    outcome, around = TuningResult(before, before), opened.recorder
    opened.recorder = recorded.append
    try:
        yield outcome
    finally:
        opened.recorder = around
    schedule = schedule_of(device)
    changes = MEASURED[schedule]
    families = [family.name for family in FAMILIES.values() if schedule in family.measured]
    with interned({}):
        cases = [
            case for family in families for case in _distinct(device, family, recorded, before)
        ]
        outcome.kernels = len(cases)
        if cases:
            search = _Search(cases, changes, timer or run_time)
            outcome.tiles = search.best(before)
            outcome.speedup = 1 / search.relative(outcome.tiles, before)
            tuned_tiles.remember(device, outcome.tiles)


def _distinct(
    device: KernelDevice, family: str, recorded: Sequence[FusionPlan], tiles: Tiles
) -> list[TuningTask]:
    """Different kernels of a family, those with most bytes first."""
    found: dict[Hashable, tuple[int, TuningTask]] = {}
    for plan in recorded:
        for fusion in plan.fusions:
            if fusion.family == family:
                case = TuningTask(plan, fusion, device)
                kernel = case.kernel(tiles)
                nbytes = sum(case.nbytes(kernel).values())
                found.setdefault((kernel.code, kernel.workgroup_size), (nbytes, case))
    ordered = sorted(found.values(), key=lambda each: -each[0])
    return [case for _, case in ordered[:MOST]]


class _Search:
    """Tries changes one after the other; kernels of equal code and launch are not timed again."""

    def __init__(self, cases: Sequence[TuningTask], changes: Changes, timer: Timer) -> None:
        self._cases, self._changes, self._timer = cases, changes, timer
        self._seconds: dict[Hashable, float] = {}

    def best(self, tiles: Tiles) -> Tiles:
        """The tiles that no single change improves by more than ``MARGIN``."""
        for changes in self._changes:
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
        launched = ((each.code, each.workgroups, each.workgroup_size) for each in kernel.launches)
        key = number, *launched
        if key not in self._seconds:
            self._seconds[key] = self._timer(kernel, case)
        return self._seconds[key]


def run_time(kernel: Kernel, case: TuningTask) -> float:
    """Seconds of its launches: the median of several rounds over weights of ``ROTATED`` bytes."""
    device = case.device
    named = [(f"measured_{n}", each) for n, each in enumerate(kernel.launches)]
    texts = (each.text(device.dialect, name) for name, each in named)
    made = built(device, "\n\n".join((device.dialect.prelude(), *texts)))
    sizes = case.nbytes(kernel)
    largest = max(sizes, key=lambda value: sizes[value])
    memories = {value: _filled(device, n) for value, n in sizes.items()}
    count = max(1, min(LAUNCHES_PER_ROUND, ROTATED // sizes[largest]))
    rotation: list[list[tuple[Any, int, int]]] = []
    held: list[Memory] = []
    for _ in range(count):
        held += memories.values()
        rotation.append([])
        for name, each in named:
            bound = device.kernel(made, name, len(each.values))
            for position, value in enumerate(each.values):
                device.bind(bound, position, memories[value])
            rotation[-1].append((bound, each.workgroups, each.workgroup_size))
        if len(rotation) < count:
            memories[largest] = _filled(device, sizes[largest])
    rounds = [_round(device, rotation) for _ in range(REPEATS + 1)]
    return statistics.median(rounds[1:])


def _round(device: KernelDevice, rotation: Sequence[Sequence[tuple[Any, int, int]]]) -> float:
    began = time.perf_counter()
    for launches in rotation:
        for launch in launches:
            device.launch(*launch)
    device.finish()
    return (time.perf_counter() - began) / len(rotation)


def _filled(device: KernelDevice, nbytes: int) -> Memory:
    """Memory that was written: as f32, f16 or bf16 it holds numbers near one."""
    import numpy as np

    memory = device.allocate(nbytes)
    device.write(memory, np.full(nbytes, 0x3F, np.uint8))
    return memory
