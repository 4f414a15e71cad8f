"""Parameters under a budget on CuPy, which is pretended, as lazy as a GPU may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_cupy import FakeCupy

import ptir
from ptir.backend.contract import Target
from running import llama_folder

pytestmark = pytest.mark.turns(2)

GREEDY: dict[str, Any] = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("budget", ["800KiB", "1000KiB"])
def test_weights_that_come_and_go_give_the_same_tokens(
    cupy: Target, fake: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    path = llama_folder(tmp_path, num_hidden_layers=3, hidden_size=96, intermediate_size=160)
    plain = ptir.load_model(path, backend=cupy).generate([1, 2, 3], **GREEDY)
    model = ptir.load_model(path, backend=cupy, device_memory=budget)
    for _ in range(2):
        assert model.generate([1, 2, 3], **GREEDY).token_ids == plain.token_ids
    stream = model.store.streamed
    assert stream is not None
    assert stream.counters.bytes_read > 3 * sum(
        model.store.type(name).nbytes for name in model.store.source.names()
    )
    assert 0 < stream.resident.peak <= stream.budget
