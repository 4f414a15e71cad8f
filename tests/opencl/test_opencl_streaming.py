"""Parameters under a budget on OpenCL: within it by the device's own count, fetched beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyopencl as cl
import pytest

import ptir
from devices import without_optimizer
from ptir.backend.contract import Target
from ptir.errors import UsageError
from ptir_backend_opencl.backend import OpenCLBackend
from running import llama_folder

pytestmark = pytest.mark.turns(3)

GREEDY: dict[str, Any] = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, "logprobs": 1}


@pytest.fixture
def discrete(opencl: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Target:
    """The device, opened anew, as one that does not read the host's memory."""
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    backend = OpenCLBackend()
    found = Target(backend, backend.devices()[0])
    opened(found)._shares = False
    without_optimizer(found)
    return found


def opened(target: Target) -> Any:
    backend: Any = target.backend
    return backend.opened(target.device).device


@pytest.mark.parametrize("budget", ["smallest", "1MiB", "2MiB"])
def test_the_device_never_holds_more_than_the_budget(
    opencl: Target, discrete: Target, tmp_path: Path, budget: str
) -> None:
    path = llama_folder(tmp_path, num_hidden_layers=4, hidden_size=128, intermediate_size=256)
    if budget == "smallest":
        with pytest.raises(UsageError) as caught:
            ptir.load_model(path, backend=opencl, device_memory=150_000).generate([1, 2], **GREEDY)
        budget = str(caught.value).partition("give --device-memory ")[2].partition(" ")[0]
    model = ptir.load_model(path, backend=discrete, device_memory=budget)
    found = model.generate([1, 2, 3], **GREEDY)
    stream = model.store.streamed
    stats = discrete.backend.memory_stats(discrete.device)
    assert stream is not None
    assert stats is not None
    assert stream.resident.peak < stats.peak_bytes <= stream.budget
    wanted = ptir.load_model(path, backend=opencl).generate([1, 2, 3], **GREEDY)
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)


def test_the_next_stage_comes_beside_this_one(
    discrete: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are in a queue of their own, and begin behind a stage's kernels, not before."""
    path = llama_folder(tmp_path, num_hidden_layers=3, hidden_size=128, intermediate_size=256)
    model = ptir.load_model(path, backend=discrete, device_memory="900KiB")
    device = opened(discrete)
    model.generate([1, 2], **GREEDY)
    said: list[str] = []
    copying, launching, joining = cl.enqueue_copy, cl.enqueue_nd_range_kernel, cl.enqueue_barrier

    def copied(queue: Any, *given: Any, **named: Any) -> Any:
        if queue is device._copies:
            assert len(named["wait_for"]) == 1
            said.append("copy")
        return copying(queue, *given, **named)

    def launched(queue: Any, *given: Any, **named: Any) -> Any:
        assert queue is device._queue
        said.append("kernel")
        return launching(queue, *given, **named)

    def joined(queue: Any, **named: Any) -> Any:
        assert queue is device._queue
        said.append("join")
        return joining(queue, **named)

    monkeypatch.setattr(cl, "enqueue_copy", copied)
    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", launched)
    monkeypatch.setattr(cl, "enqueue_barrier", joined)
    model.generate([1, 2], **GREEDY)
    runs = [name for name, before in zip(said, [None, *said], strict=False) if name != before]
    first = runs.index("kernel")  # the first stage of a session is waited for
    assert runs[first : first + 6] == ["kernel", "copy", "join", "kernel", "copy", "join"]


@pytest.mark.parametrize("how", [{}, {"quant": "int4"}], ids=str)
def test_rows_of_weights_come_and_go_within_the_budget(
    opencl: Target, discrete: Target, tmp_path: Path, how: dict[str, str]
) -> None:
    sizes = {"vocab_size": 12_000, "hidden_size": 64, "num_hidden_layers": 1}
    path = llama_folder(tmp_path, tie_word_embeddings=bool(how), **sizes)
    budget = 700 << 10 if how else 3 << 20
    model = ptir.load_model(path, backend=discrete, device_memory=budget, **how)  # type: ignore[arg-type]
    found = model.generate([1, 2, 11_999], **GREEDY)
    wanted = ptir.load_model(path, backend=opencl, **how).generate([1, 2, 11_999], **GREEDY)  # type: ignore[arg-type]
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    plan: Any = model.steps.advance(1, 64).plans[-1]
    assert plan.rows
    stats = discrete.backend.memory_stats(discrete.device)
    assert stats is not None
    assert stats.peak_bytes <= budget
