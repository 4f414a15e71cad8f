"""Groups are as large as the tiles say, and tuning chooses among such sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opencl_runs import close, normal, run
from test_coop_schedules import HEROES, kernels
from test_opencl_families import attention

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture.plan import PLANS
from ptir.codegen.compile import compile_block
from ptir.codegen.context import Context
from ptir.codegen.families import FAMILIES
from ptir.codegen.schedules import tiles, tuned_tiles
from ptir.codegen.tuning import tune
from ptir.codegen.tuning.recorder import Recorded
from ptir.codegen.tuning.tune import TuningTask, run_time, tuning
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir.types import spec

SIZES: dict[str, dict[str, int]] = {
    "map": {"map_workgroup_size": 32},
    "row_reduction": {"row_workgroup_size": 64, "row_elements_per_thread": 2},
    "reduce": {"independent_workgroup_size": 16},
    "sort": {"sort_workgroup_size": 64},
    "cumulative": {"sort_workgroup_size": 32},
    "random": {"independent_workgroup_size": 8},
    "scatter": {"independent_workgroup_size": 4},
    "cache": {"independent_workgroup_size": 4},
    "attention": {
        "attention_workgroup_size": 64,
        "attention_block_rows": 4,
        "attention_block_keys": 4,
    },
}
"""By family: sizes other than the table's, of which one is that of its groups."""


@pytest.fixture(autouse=True)
def own_tiles(opencl: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The device, whose tiles are kept elsewhere and whose row of the table may change."""
    monkeypatch.setattr(tuned_tiles, "file", lambda: tmp_path / "tiles.json")
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
    tuned_tiles.forget()
    yield opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    tuned_tiles.forget()


def changed(monkeypatch: pytest.MonkeyPatch, device: Any, **sizes: int) -> None:
    row = device.traits.device_class
    monkeypatch.setitem(tiles.TILES, row, replace(tiles.TILES[row], **sizes))  # type: ignore[misc]
    tuned_tiles.forget()
    PLANS.clear()


@pytest.mark.parametrize("family", SIZES)
def test_groups_have_the_members_that_the_tiles_say(
    opencl: Target, own_tiles: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, types = HEROES[family]
    changed(monkeypatch, own_tiles, **SIZES[family])
    members = [k.workgroup_size for k in kernels(opencl, function, *types) if k.family == family]
    assert members == [next(iter(SIZES[family].values()))]


def test_results_do_not_depend_on_the_sizes(
    opencl: Target, own_tiles: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = {name: size for sizes in SIZES.values() for name, size in sizes.items()}
    changed(monkeypatch, own_tiles, **every)
    x = normal(3, 300)
    shares = np.exp(x.astype(np.float64))
    softmax = run(opencl, lambda x: F.softmax(x, axis=-1), x)
    close(softmax, shares / shares.sum(-1, keepdims=True))
    best = run(opencl, lambda x: F.top_k(x, 3)[1], x)
    np.testing.assert_array_equal(best, np.argsort(-x, axis=-1, kind="stable")[:, :3])
    q, k = normal(1, 4, 5, 16), normal(1, 2, 40, 16, seed=1)
    rows = np.array([30], np.int32), np.array([35], np.int32)
    found = run(opencl, lambda q, k, s, n: F.attention(q, k, k, start=s, length=n), q, k, *rows)
    close(found, attention(q, k, k, *rows), 1e-4)


def step(target: Target, opened: Recorded) -> None:
    """Compile a norm, and attention of one query over many keys."""
    cache, rows = spec("f32", 1, 2, 600, 16), spec("i32", 1)

    def body(q: Any, keys: Any, start: Any, length: Any, x: Any) -> Any:
        return F.attention(q, keys, keys, start=start, length=length), F.softmax(x, axis=-1)

    types = spec("f32", 1, 4, 1, 16), cache, rows, rows, spec("f32", 3, 400)
    program = ptir.capture(body, *types)
    block = optimize(program, PassContext(target.backend, target.device)).main
    compile_block(block, Context.of(opened.device, recorder=opened.recorder), Options())


def test_tuning_measures_kernels_of_groups_and_keeps_the_fastest_sizes(
    opencl: Target, own_tiles: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_tiles, "traits", replace(own_tiles.traits, compute_units=64))
    before = tuned_tiles.tiles_for(own_tiles)
    wanted = replace(before, min_keys_per_split=128, row_elements_per_thread=4)
    seen: list[tuple[str, int]] = []

    def clock(kernel: Any, case: TuningTask) -> float:
        seen.append((kernel.family, len(kernel.launches)))
        right = case.kernel(wanted)
        texts = [
            [(k.code.text, k.workgroups, k.workgroup_size) for k in one.launches]
            for one in (kernel, right)
        ]
        return 1.0 if texts[0] == texts[1] else 2.0

    opened = Recorded(own_tiles)
    with tuning(opened, clock) as outcome:
        step(opencl, opened)
    assert {("attention", 2), ("row_reduction", 1)} <= set(seen)
    assert outcome.kernels == 2 and outcome.speedup > 1
    assert (outcome.tiles.min_keys_per_split, outcome.tiles.row_elements_per_thread) == (128, 4)
    assert tuned_tiles.tiles_for(own_tiles) == outcome.tiles


def test_both_launches_of_a_kernel_are_timed(
    opencl: Target, own_tiles: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_tiles, "traits", replace(own_tiles.traits, compute_units=64))
    launched: list[tuple[int, int]] = []
    launch = own_tiles.launch
    monkeypatch.setattr(
        own_tiles, "launch", lambda k, *sizes: (launched.append(sizes), launch(k, *sizes))
    )
    monkeypatch.setattr(tune, "MEASURED", {"coop": (({"min_keys_per_split": 200},),)})
    monkeypatch.setattr(tune, "FAMILIES", {"attention": FAMILIES["attention"]})
    timed: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]] = []

    def timer(kernel: Any, case: TuningTask) -> float:
        launched.clear()
        seconds = run_time(kernel, case)
        timed.append(
            ([(each.workgroups, each.workgroup_size) for each in kernel.launches], launched.copy())
        )
        return seconds

    opened = Recorded(own_tiles)
    with tuning(opened, timer):
        step(opencl, opened)
    assert [len(sizes) for sizes, _ in timed[:2]] == [2, 2]
    assert timed[0][0] != timed[1][0]
    for sizes, ran in timed:
        assert ran and ran == sizes * (len(ran) // 2)
