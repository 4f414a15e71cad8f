"""Parameters under a budget on C: stages in one call each, and processes with little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.backend.contract import Target
from ptir.capture.streamed import StreamedPlan
from ptir.params.streaming import BudgetError
from running import llama_folder

pytestmark = pytest.mark.turns(3)

GREEDY: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
LIMITED = """
import re, resource, sys
from pathlib import Path
import ptir
model = ptir.load_model(sys.argv[1], backend="c", device_memory=sys.argv[2] or None)
status = Path("/proc/self/status").read_text()
most = int(re.search(r"VmData:\\s+(\\d+)", status)[1]) * 1024 + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
print(model.generate([1, 2, 3], max_tokens=3, temperature=0, ignore_eos=True).token_ids)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of weights of this test's own."""
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("how", [{}, {"quant": "int8"}, {"dtype": "bf16"}], ids=str)
def test_results_are_the_same_and_weights_take_no_memory_of_the_device(
    c: Target, tmp_path: Path, how: dict[str, str]
) -> None:
    path = llama_folder(tmp_path, num_hidden_layers=3, hidden_size=128, intermediate_size=256)
    plain = ptir.load_model(path, backend=c, **how)  # type: ignore[arg-type]
    model = ptir.load_model(path, backend=c, device_memory="900KiB", **how)  # type: ignore[arg-type]
    for _ in range(2):
        found = model.generate([1, 2, 3], **GREEDY, logprobs=1)
        wanted = plain.generate([1, 2, 3], **GREEDY, logprobs=1)
        assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    np.testing.assert_array_equal(model.forward([4, 5]), plain.forward([4, 5]))
    stream = model.store.streamed
    assert stream is not None
    assert 0 < stream.resident.peak <= stream.budget


def test_a_stage_is_one_call_also_when_stages_change(c: Target, tmp_path: Path) -> None:
    """Another program takes some of the budget, so the first one's stages become smaller."""
    path = llama_folder(tmp_path, num_hidden_layers=4, hidden_size=128, intermediate_size=256)
    model = ptir.load_model(path, backend=c, device_memory="1MiB")
    wanted = model.generate([1, 2, 3], **GREEDY).token_ids
    plan = model.steps.advance(1, 64).plans[-1]
    assert isinstance(plan, StreamedPlan)
    executable: Any = plan.executable
    before = {(stage.first, stage.end) for stage in plan.schedule.stages}
    assert {*executable._some} == before
    plan.stream.add_workspace(object(), 300_000)
    assert model.generate([1, 2, 3], **GREEDY).token_ids == wanted
    after = {(stage.first, stage.end) for stage in plan.schedule.stages}
    assert after != before
    assert after == {*executable._some}


def test_a_session_whose_next_program_does_not_fit_runs_nothing(c: Target, tmp_path: Path) -> None:
    """Prompts and tokens have programs of their own, which hold intermediates side by side."""
    path = llama_folder(tmp_path, num_hidden_layers=2, hidden_size=128, intermediate_size=256)

    def refused(budget: int) -> BudgetError:
        model = ptir.load_model(path, backend=c, device_memory=budget)
        with pytest.raises(BudgetError) as caught:
            next(model.run([[1, 2, 3]], **GREEDY))
        assert model.store.streamed is not None
        assert not model.store.streamed.counters.bytes_read
        return caught.value

    smallest = refused(150_000).smallest
    model = ptir.load_model(path, backend=c, device_memory=smallest)
    assert len(model.generate([1, 2, 3], **GREEDY).token_ids) == 6
    assert refused(smallest - 1).smallest == smallest


@pytest.mark.skipif(sys.platform != "linux", reason="limits of data are Linux's")
def test_a_process_without_room_for_the_weights_runs_under_a_budget(
    c: Target, tmp_path: Path
) -> None:
    sizes = {"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1536}
    path = llama_folder(tmp_path, **sizes)  # 100 MB

    def run(budget: str, more: int, cache: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LIMITED, str(path), budget, str(more)]
        environment = os.environ | {"PTIR_CACHE_DIR": str(tmp_path / cache)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    wanted = run("", 1 << 32, "plenty")
    assert wanted.returncode == 0, wanted.stderr
    little = (16 << 20) + (48 << 20)
    found = run("16MiB", little, "budget")
    assert found.stdout == wanted.stdout, found.stderr
    assert "OutOfMemory" in run("", little, "none").stderr


@pytest.mark.slice(1)
@pytest.mark.parametrize("how", [{}, {"quant": "int4"}, {"dtype": "bf16"}], ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_weights_that_are_cut_by_rows_give_the_same_bits(
    c: Target, tmp_path: Path, how: dict[str, str], tied: bool
) -> None:
    sizes = {"vocab_size": 5000, "hidden_size": 128, "num_hidden_layers": 1}
    path = llama_folder(tmp_path, tie_word_embeddings=tied, **sizes)
    plain = ptir.load_model(path, backend=c, **how)  # type: ignore[arg-type]
    budget = 1_300_000 if how.get("quant") else 2_600_000
    model = ptir.load_model(path, backend=c, device_memory=budget, **how)  # type: ignore[arg-type]
    wanted = plain.generate([1, 4999, 2500], **GREEDY, logprobs=1)
    found = model.generate([1, 4999, 2500], **GREEDY, logprobs=1)
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    plan = model.steps.advance(1, 64).plans[-1]
    assert isinstance(plan, StreamedPlan)
    assert plan.rows or sum(plan.sizes.values()) < budget // 2
    assert 0 < plan.stream.resident.peak <= budget
