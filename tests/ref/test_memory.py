"""The reference backend's memory figures: what exists is counted, once, and until it is freed."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend import Options, Target
from ptir.capture import call_multi
from ptir.capture.plan import PLANS
from ptir_backend_ref import RefBackend, memory
from running import small

pytestmark = pytest.mark.turns(2)

N = 1 << 16
BYTES = 4 * N


@pytest.fixture
def target() -> Target:
    backend = RefBackend()
    return Target(backend, backend.devices()[0])


def figures(target: Target) -> tuple[int, int]:
    gc.collect()
    stats = target.backend.memory_stats(target.device)
    assert stats is not None
    return stats.live_bytes, stats.peak_bytes


def test_uploads_count_while_they_live(target: Target) -> None:
    upload, device = target.backend.upload, target.device
    first = upload(np.zeros(N, np.float32), device)
    assert figures(target) == (BYTES, BYTES)
    lent = np.zeros(2 * N, np.float32)
    second = upload(lent, device, borrow=True)
    third = upload(lent, device, borrow=True)
    del lent
    copied = target.backend.copy(first[:5], device)
    assert figures(target) == (5 * BYTES + 20,) * 2
    del first, copied
    assert figures(target) == (4 * BYTES, 5 * BYTES + 20)
    del second, third
    assert figures(target)[0] == 0


def run(target: Target, function: Any, *arrays: Any) -> Any:
    specs = [ptir.spec("f32", *a.shape) for a in arrays]
    program = ptir.capture(function, *specs)
    executable = target.backend.compile(program, target.device, Options())
    return executable.run([target.backend.upload(a, target.device) for a in arrays])


def test_intermediates_count_in_the_peak(target: Target) -> None:
    """x stays; y and z exist at once, then both and their sum, which takes the memory of one."""

    def function(x: Any) -> Any:
        y, z = F.exp(x), F.sin(x)
        return (y + z) * 2.0

    (out,) = run(target, function, np.ones(N, np.float32))
    live, peak = figures(target)
    assert out.nbytes == BYTES <= live <= BYTES + 64
    assert 3 * BYTES <= peak <= 4 * BYTES + 64


def test_views_and_results_in_place_are_not_counted_again(target: Target) -> None:
    def function(x: Any) -> Any:
        return (F.exp(x).reshape(256, -1).T + 1.0)[3:, ::2].reshape(-1)[::-1]

    outputs = run(target, function, np.ones(N, np.float32))
    assert figures(target)[1] <= 4 * BYTES + 64
    del outputs
    assert figures(target)[0] <= 64  # the scalar constant belongs to the executable


def test_rows_of_a_scan_and_results_of_several_are_counted(target: Target) -> None:
    def function(x: Any) -> Any:
        return call_multi("top_k", x, k=4096)[0], F.scan(lambda c, row: (c, row * 2.0), 0.0, x)[1]

    values, stacked = run(target, function, np.ones((2, N // 2), np.float32))
    assert figures(target)[0] >= values.nbytes + stacked.nbytes == BYTES + 4 * 2 * 4096


def test_counting_from_threads_loses_nothing(target: Target) -> None:
    def work() -> None:
        for _ in range(300):
            target.backend.upload(np.zeros(1000, np.float32), target.device)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    live, peak = figures(target)
    assert live == 0 and 4000 <= peak <= 8 * 2 * 4000


def test_arrays_may_be_freed_while_the_interpreter_shuts_down(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the names of modules are None already."""
    array = target.backend.upload(np.zeros(N, np.float32), target.device)
    for name in [name for name in vars(memory) if not name.startswith("__")]:
        monkeypatch.setattr(memory, name, None)
    del array
    monkeypatch.undo()
    assert figures(target)[0] == 0


def test_generation_reports_weights_cache_and_what_runs(target: Target, tmp_path: Any) -> None:
    small(tmp_path)
    loaded = ptir.load_model(tmp_path / "small", backend=target)
    weights = sum(loaded.store.type(n).nbytes for n in loaded.store.source.names())
    caches = sum(t.nbytes for pair in loaded.state_types(1, 40) for t in pair)
    stats = loaded.generate([1, 2, 3], max_tokens=4).stats
    assert weights + caches <= stats.peak_memory_bytes <= 3 * (weights + caches)


def test_live_bytes_return_after_a_model_is_dropped(target: Target) -> None:
    PLANS.clear()
    before, _ = figures(target)
    model = ptir.load_model("random:gpt2-tiny", backend=target)
    model.generate([5, 100, 7], max_tokens=3, temperature=0.0)
    assert figures(target)[0] - before > 50257 * 64 * 4
    del model
    PLANS.clear()
    assert figures(target)[0] == before
