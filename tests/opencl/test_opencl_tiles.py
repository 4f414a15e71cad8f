"""Tiles on a device: every row of the table and every measured choice computes the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from test_opencl_families import close, normal, product

from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.cli.main import main
from ptir.codegen.schedules import tuned_tiles
from ptir.codegen.schedules.tiles import TILES, Tiles
from ptir.codegen.tuning import tune

pytestmark = pytest.mark.turns(2)

ODD = Tiles(gemm_rows=3, gemm_panels=2, accumulators=8, workgroups_per_unit=1, min_work=64)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    tuned_tiles.forget()
    PLANS.clear()
    yield tmp_path
    tuned_tiles.forget()
    PLANS.clear()


@pytest.mark.slice(3)
@pytest.mark.parametrize("tiles", [*TILES.values(), ODD], ids=[*TILES, "odd"])
def test_products_are_right_whatever_the_tiles(opencl: Target, cache: Path, tiles: Tiles) -> None:
    device = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    tuned_tiles.remember(device, tiles)
    x, weight, bias = normal(37, 64), normal(64, 118, seed=1), normal(118, seed=2)
    for rows in (1, 3, 37):
        found = product(opencl, x[:rows], weight, bias, "io")
        close(found, np.maximum(x[:rows].astype(np.float64) @ weight + bias, 0), 1e-4)


def try_only(monkeypatch: pytest.MonkeyPatch, *changes: tuple[dict[str, int], ...]) -> None:
    """Have both schedules try these changes, and no others."""
    monkeypatch.setattr(tune, "MEASURED", dict.fromkeys(tune.MEASURED, changes))


def test_a_model_is_tuned_and_the_next_process_uses_the_choice(
    opencl: Target, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "ROTATED", 1 << 20)
    try_only(monkeypatch, ({"gemm_rows": 6, "gemm_panels": 4},), ({"accumulators": 2},))
    device = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    x, weight, bias = normal(37, 64), normal(64, 118, seed=1), normal(118, seed=2)
    with opencl.backend.tuning(opencl.device) as outcome:  # type: ignore[union-attr]
        for rows in (1, 37):
            product(opencl, x[:rows], weight, bias, "io")
    assert outcome.kernels == 2 and outcome.speedup > 0  # which one wins is up to the machine
    assert tuned_tiles.choices()[device.traits.identity] == asdict(outcome.tiles)
    tuned_tiles.forget()
    assert tuned_tiles.tiles_for(device) == outcome.tiles


def test_warm_up_tunes_with_the_model_and_keeps_the_choice(
    opencl: Target,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try_only(monkeypatch)
    monkeypatch.setattr(tune, "MOST", 2)
    words = ("warmup", "random:gpt2-tiny", "--tune", "--tokens", "8", "--backend", "opencl")
    assert main([*words, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)["tuned"]
    assert value["kernels"] == 2 and not value["changed"]
    assert list(tuned_tiles.choices().values()) == [value["tiles"]]
