"""Memory on a device: what is written over what, what comes back, what a fault leaves behind."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture.plan import PLANS
from ptir.codegen.families.map.serial import MapEmitter
from ptir.codegen.launching.memory import IDLE, RETIRED, Pool
from ptir.errors import DeviceError
from ptir.ops.overriding import active_overrides
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir.types import spec

pytestmark = pytest.mark.turns(2)

cl = pytest.importorskip("pyopencl")
SQUARE = spec("f32", 32, 32)


def square(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((32, 32), np.float32)


def donating(target: Target, body: Any, *arrays: Any) -> list[Any]:
    """The results of ``body`` on arrays of which the first is donated."""
    program = ptir.capture(body, *(spec("f32", *array.shape) for array in arrays))
    context = PassContext(target.backend, target.device, active_overrides())
    options = Options(donated=frozenset((0,)))
    executable = target.backend.compile(optimize(program, context), target.device, options)
    handles = [target.backend.upload(array, target.device) for array in arrays]
    return [target.backend.download(each, target.device) for each in executable.run(handles)]


BODIES = {
    "over": lambda x, y: F.exp(x) * 2.0 + y,
    "reversed": lambda x, y: F.exp(x[::-1]) + x + y,
    "turned": lambda x, y: x.transpose(1, 0) * 3.0 + x - y,
    "twice": lambda x, y: ((x + y) @ y, F.tanh((x + y) @ y) * 2.0),
}
MEANT = {
    "over": lambda x, y: np.exp(x) * 2 + y,
    "reversed": lambda x, y: np.exp(x[::-1]) + x + y,
    "turned": lambda x, y: x.T * 3 + x - y,
    "twice": lambda x, y: np.tanh((x + y) @ y) * 2,
}


@pytest.mark.parametrize("name", BODIES)
def test_a_map_over_a_donated_input_computes_the_same(opencl: Target, name: str) -> None:
    x, y = square(0), square(1)
    found = donating(opencl, BODIES[name], x, y)[-1]
    meant = MEANT[name](x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(found, meant, rtol=1e-4, atol=1e-4)


def test_a_planted_takeover_of_what_is_read_elsewhere_is_seen(
    opencl: Target, monkeypatch: pytest.MonkeyPatch, built_anew: None
) -> None:
    monkeypatch.setattr(
        MapEmitter, "may_alias", lambda self: frozenset(self._loaded | self._elsewhere)
    )
    x, y = square(0), square(1)
    found = donating(opencl, BODIES["reversed"], x, y)[-1]
    meant = MEANT["reversed"](x.astype(np.float64), y.astype(np.float64))
    assert not np.allclose(found, meant, rtol=1e-4, atol=1e-4)


# --- what comes back ---


@pytest.fixture
def buffers(opencl: Target, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """The bytes of every buffer that the process really holds, by an identity of its own."""
    PLANS.clear()
    settled(opencl)
    alive: dict[int, int] = {}
    numbers = itertools.count()

    class Counted(cl.Buffer):  # type: ignore[misc]
        def __init__(self, context: Any, flags: int, size: int = 0, hostbuf: Any = None) -> None:
            super().__init__(context, flags, size, hostbuf)
            self.number = next(numbers)
            alive[self.number] = self.size

        def __del__(self) -> None:
            alive.pop(self.number, None)

    monkeypatch.setattr(cl, "Buffer", Counted)
    yield alive
    PLANS.clear()
    settled(opencl)


def settled(target: Target) -> int:
    """The live bytes once everything that nobody holds is gone."""
    gc.collect()
    target.backend.synchronize(target.device)
    stats = target.backend.memory_stats(target.device)
    assert stats is not None
    return stats.live_bytes


def test_live_bytes_return_after_a_model_is_dropped(
    opencl: Target, buffers: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opencl.backend.opened(opencl.device).pool  # type: ignore[attr-defined]
    monkeypatch.setattr(pool, "_recurring", set())  # of sizes that came back, more is kept
    pool._given_up.clear()
    before = settled(opencl)
    model = ptir.load_model("random:gpt2-tiny", backend=opencl)
    model.generate([5, 100, 7], max_tokens=3, temperature=0.0)
    weights = 50257 * 64 * 4
    assert settled(opencl) - before > weights
    del model
    plans = settled(opencl) - before  # plans are kept, and their arenas
    assert plans < weights / 10
    assert sum(buffers.values()) < IDLE + weights / 10
    PLANS.clear()
    assert settled(opencl) == before


@pytest.mark.parametrize("copies", [False, True])
def test_a_program_keeps_no_handle_of_its_caller_alive(
    opencl: Target, buffers: dict[int, int], copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opencl.backend.opened(opencl.device).pool  # type: ignore[attr-defined]
    monkeypatch.setattr(pool, "_most_spare", 1 << 20)
    size = (1 << 20) + 4  # more than the pool may keep for reuse
    body = (lambda x: (x * 2.0, x)) if copies else (lambda x: (x * 2.0, x - 0.5))
    program = ptir.capture(body, spec("f32", size // 4))
    executable = opencl.backend.compile(program, opencl.device, Options())
    for _ in range(3):
        handle = opencl.backend.upload(np.ones(size // 4, np.float32), opencl.device)
        doubled, other = executable.run([handle])
        assert opencl.backend.download(doubled, opencl.device)[-1] == 2
        assert opencl.backend.download(other, opencl.device)[-1] == (1 if copies else 0.5)
        assert sum(buffers.values()) >= 3 * size
        del handle, doubled, other
        settled(opencl)
        assert sum(buffers.values()) < size


def test_memory_of_a_size_that_comes_back_is_kept_and_never_raises_the_peak(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    pool, fresh, size = Pool(device), list[int](), IDLE + 4
    allocate = device.allocate
    monkeypatch.setattr(device, "allocate", lambda size: fresh.append(size) or allocate(size))
    for _ in range(5):
        pool.release(pool.take(size), size)
    assert fresh == [size, size]  # the first time nobody knew that it would come back
    assert pool.stats().peak_bytes == size
    pool.release(pool.take(size + 8), size + 8)
    assert pool.stats().peak_bytes == size + 8 and not pool._free
    monkeypatch.setattr(pool, "_most_spare", 2 * size)
    for _ in range(3):  # of three that come back, as much as may be of what came last is kept
        taken = [pool.take(size + n) for n in range(3)]
        for n, memory in enumerate(taken):
            pool.release(memory, size + n)
    assert list(pool._free) == [size + 2]


def test_two_hundred_steps_of_decoding_do_not_grow(opencl: Target, buffers: dict[int, int]) -> None:
    model = ptir.load_model("demo", backend=opencl)
    figures = [
        settled(opencl)
        for step, _ in enumerate(model.run(["ROMEO:"], max_tokens=230, temperature=0.0))
        if step % 25 == 0
    ]
    assert len(figures) >= 8
    assert set(figures[1:8]) == {figures[1]}


def test_an_input_is_bound_again_after_a_bind_failed(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ptir.capture(lambda x, y: (x * 2.0 + y) @ (x - y), SQUARE, SQUARE)
    executable = opencl.backend.compile(program, opencl.device, Options())
    handles = [opencl.backend.upload(square(seed), opencl.device) for seed in range(4)]

    def result(*given: int) -> bytes:
        (found,) = executable.run([handles[n] for n in given])
        return opencl.backend.download(found, opencl.device).tobytes()

    first, device = result(0, 1), opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    bind, calls = device.bind, list[int]()

    def failing(*given: Any) -> None:
        calls.append(0)
        if len(calls) == 2:
            raise DeviceError("bind failed")
        bind(*given)

    with monkeypatch.context() as patch:
        patch.setattr(device, "bind", failing)
        with pytest.raises(DeviceError, match="bind failed"):
            result(2, 3)
    assert result(0, 1) == first


def test_a_handle_at_the_address_of_one_that_is_gone_is_bound_anew(opencl: Target) -> None:
    backend, device = opencl.backend, opencl.device
    pool = backend.opened(device).pool  # type: ignore[attr-defined]
    executable = backend.compile(ptir.capture(lambda x: x + 1.0, SQUARE), device, Options())

    def check(handle: Any, array: np.ndarray[Any, Any]) -> None:
        (out,) = executable.run([handle])
        np.testing.assert_array_equal(backend.download(out, device), array + np.float32(1))

    again, taken, gone = 0, [], set()
    for seed in range(64):
        handle = backend.upload(square(seed), device)
        check(handle, square(seed))
        gone.add(id(handle))
        del handle
        taken += [pool.take(SQUARE.nbytes) for _ in range(2)]  # the next ones have other memory
        others = [backend.upload(square(100 + n), device) for n in range(64)]
        for n, other in enumerate(others):
            if id(other) in gone:
                check(other, square(100 + n))
                again += 1
        del others, other
    for memory in taken:
        pool.release(memory, SQUARE.nbytes)
    assert again, "no handle came to lie where another one had been: nothing was tested"


def test_a_lent_array_that_is_copied_stays_until_the_copy_is_done(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = opencl.backend.opened(opencl.device)  # type: ignore[attr-defined]
    monkeypatch.setattr(opened.device, "borrow", lambda array: None)  # as on a discrete device
    settled(opencl)
    array = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
    wanted, lent = array.copy(), weakref.ref(array)
    handle = opencl.backend.upload(array, opencl.device, borrow=True)
    del array
    gc.collect()
    assert lent() is not None
    np.testing.assert_array_equal(opencl.backend.download(handle, opencl.device), wanted)
    gc.collect()
    assert lent() is None


def test_lent_arrays_wait_up_to_a_limit(opencl: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opencl.backend.opened(opencl.device)  # type: ignore[attr-defined]
    monkeypatch.setattr(opened.device, "borrow", lambda array: None)
    settled(opencl)
    arrays = [np.full(1 << 22, n, np.float32) for n in range(6)]  # 16 MiB each
    handles, waiting = [], []
    for array in arrays:
        handles.append(opencl.backend.upload(array, opencl.device, borrow=True))
        waiting.append(opened.pool._waiting)
    # What others give up meanwhile waits too, so that the last array may be the one that settles.
    assert 0 < max(waiting) <= RETIRED
    found = [opencl.backend.download(handle, opencl.device)[-1] for handle in handles]
    assert found == list(range(6))


def test_an_array_that_was_not_lent_may_change_at_once(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "send", None)
    array = np.zeros(1 << 20, np.float32)
    handle = opencl.backend.upload(array, opencl.device)
    array += 1
    assert not opencl.backend.download(handle, opencl.device).any()


def test_a_download_that_was_started_sees_nothing_of_what_is_queued_later(opencl: Target) -> None:
    array = np.arange(1 << 20, dtype=np.float32)
    program = ptir.capture(lambda x: F.exp(F.sin(x)) * 2.0, spec("f32", *array.shape))
    options = Options(donated=frozenset((0,)))
    executable = opencl.backend.compile(program, opencl.device, options)
    handle = opencl.backend.upload(array, opencl.device)
    early = opencl.backend.fetch(handle, opencl.device)
    assert early is not None
    (written,) = executable.run([handle])  # over the memory that is being read
    late = opencl.backend.fetch(written, opencl.device)
    assert late is not None
    np.testing.assert_array_equal(early(), array)
    np.testing.assert_allclose(late(), np.exp(np.sin(array, dtype=np.float64)) * 2, rtol=1e-5)
