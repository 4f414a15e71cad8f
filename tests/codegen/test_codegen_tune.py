"""Tuning: which products are measured, what is tried, and which choice is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from paper import DEVICE, PaperBackend, PaperDevice, compiled, optimized

import ptir
from ptir import functional as F
from ptir.backend.contract import Options
from ptir.codegen.compile import compile_block
from ptir.codegen.context import Context
from ptir.codegen.schedules import tuned_tiles
from ptir.codegen.schedules.kernel import Kernel
from ptir.codegen.schedules.tiles import Tiles
from ptir.codegen.tuning import tune
from ptir.codegen.tuning.recorder import Recorded
from ptir.codegen.tuning.tune import TuningTask, tuning
from ptir.ir.program import Port, Program
from ptir.types import spec


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    yield tmp_path / "tiles.json"
    tuned_tiles.forget()


def product(rows: int, outputs: int = 96) -> Program:
    types = (spec("f32", rows, 64), spec("f32", 64, outputs))
    program = ptir.capture(lambda x, weight: F.linear(x, weight, layout="io"), *types)
    return Program(program.main, (Port("x"), Port("weight", "parameter")), program.version)


class Clock:
    """Times kernels by a rule instead of a device."""

    def __init__(self, wanted: Tiles, drift: float = 0.0) -> None:
        self.wanted, self.drift, self.timed = wanted, drift, 0

    def __call__(self, kernel: Kernel, case: TuningTask) -> float:
        self.timed += 1
        wanted = case.kernel(self.wanted)
        same = (kernel.code.text, kernel.workgroups) == (wanted.code.text, wanted.workgroups)
        return (1.0 if same else 2.0) * (1 - self.drift) ** self.timed


def tune_with(clock: Clock, device: PaperDevice, *programs: Program) -> tune.TuningResult:
    opened = Recorded(device)
    with tuning(opened, clock) as outcome:
        for program in programs:
            context = Context.of(device, recorder=opened.recorder)
            compile_block(optimized(program).main, context, Options())
    return outcome


def test_the_fastest_of_what_is_tried_is_kept_for_the_device() -> None:
    device, best = PaperDevice(), Tiles(gemm_rows=12, gemm_panels=2)
    outcome = tune_with(Clock(best), device, product(48))
    assert (outcome.tiles, outcome.before, outcome.kernels) == (best, Tiles(), 1)
    assert outcome.speedup == pytest.approx(2.0)
    assert tuned_tiles.tiles_for(device) == tuned_tiles.tiles_for(PaperDevice()) == best


def test_changes_add_up() -> None:
    programs = product(1), product(48)

    class Both(Clock):
        def __call__(self, kernel: Kernel, case: TuningTask) -> float:
            rows = case.fusion.detail.rows
            self.wanted = Tiles(accumulators=2) if rows == 1 else Tiles(gemm_rows=6, gemm_panels=1)
            return super().__call__(kernel, case)

    outcome = tune_with(Both(Tiles()), PaperDevice(), *programs)
    assert outcome.tiles == Tiles(gemm_rows=6, gemm_panels=1, accumulators=2)


def test_a_device_that_drifts_keeps_its_tiles() -> None:
    class Drifting(Clock):
        def __call__(self, kernel: Kernel, case: TuningTask) -> float:
            self.timed += 1
            return 0.9 ** min(self.timed, 3)  # the first runs are slow, all kernels alike

    outcome = tune_with(Drifting(Tiles()), PaperDevice(), product(48))
    assert outcome.tiles == Tiles() and outcome.facts()["changed"] is False


def test_equal_products_are_measured_once() -> None:
    clock = Clock(Tiles())
    assert tune_with(clock, PaperDevice(), product(48), product(48)).kernels == 1
    assert tune_with(clock, PaperDevice(), product(48), product(48, 112)).kernels == 2


def test_programs_without_products_choose_nothing(file: Path) -> None:
    outcome = tune_with(
        Clock(Tiles(gemm_rows=12, gemm_panels=2)),
        PaperDevice(),
        ptir.capture(F.exp, spec("f32", 64)),
    )
    assert outcome.kernels == 0 and not file.exists()


def test_tuning_that_fails_chooses_nothing_and_is_over(file: Path) -> None:
    backend = PaperBackend()
    opened = backend.opened(DEVICE)
    with pytest.raises(KeyError), tuning(opened, Clock(Tiles(gemm_rows=12, gemm_panels=2))):
        backend.compile(optimized(product(48)), DEVICE, Options())
        raise KeyError
    assert opened.recorder is None and not file.exists()


def test_programs_are_recorded_although_their_recipes_are_kept() -> None:
    program = optimized(product(48))
    PaperBackend().compile(program, DEVICE, Options())
    backend = PaperBackend()
    with tuning(backend.opened(DEVICE), Clock(Tiles())) as outcome:
        backend.compile(program, DEVICE, Options())
    assert outcome.kernels == 1


def test_what_is_written_untuned_is_the_same_in_every_process() -> None:
    sources = {compiled(product(48)).source for _ in range(3)}
    assert len(sources) == 1


def test_every_number_of_what_is_measured_is_tried() -> None:
    lines = [line for changes in tune.MEASURED.values() for line in changes]
    tried = {name for line in lines for change in line for name in change}
    serial = {"attention_keys", "attention_vectors", "min_work"}  # of attention, and of what pays
    unmeasured = {
        "independent_workgroup_size",
        "map_workgroup_size",
        "sort_workgroup_size",
        "convolution_pixels",
        "convolution_panels",
        "convolution_tiles_ahead",
    }  # of maps, sorts and convolutions
    assert tried == {field.name for field in fields(Tiles)} - serial - unmeasured
    for line in lines:
        for change in line:
            replace(Tiles(), **change)
