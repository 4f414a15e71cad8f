"""Tiles on a device: every row of the table and every measured choice computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from test_opencl_families import close, normal, product

from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.codegen import tuned
from ptir.codegen.tiles import TILES, Tiles

ODD = Tiles(rows=3, panels=2, chains=8, spread=1, least_work=64)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    tuned.forget()
    PLANS.clear()
    yield tmp_path
    tuned.forget()
    PLANS.clear()


@pytest.mark.parametrize("tiles", [*TILES.values(), ODD], ids=[*TILES, "odd"])
def test_products_are_right_whatever_the_tiles(opencl: Target, cache: Path, tiles: Tiles) -> None:
    device = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    tuned.choose(device, tiles)
    x, weight, bias = normal(37, 64), normal(64, 118, seed=1), normal(118, seed=2)
    for rows in (1, 3, 37):
        found = product(opencl, x[:rows], weight, bias, "io")
        close(found, np.maximum(x[:rows].astype(np.float64) @ weight + bias, 0), 1e-4)
