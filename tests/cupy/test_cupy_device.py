"""What the backend asks of CuPy: order, waits, graphs, devices, errors. CuPy is pretended."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cupy import CUDADriverError, CUDARuntimeError, FakeCupy, OutOfMemoryError, Stream

import ptir
from ptir import events
from ptir.backend.contract import Target
from ptir.capture.creation import tensor
from ptir.errors import CompileError, DeviceError, DeviceLost, OutOfMemory
from ptir_backend_cupy import device, launching


def second(cupy: Target) -> Target:
    return Target(cupy.backend, cupy.backend.devices()[1])


def opened(target: Target) -> Any:
    return target.backend.opened(target.device).device  # type: ignore[attr-defined]


def chain(x: Any) -> Any:
    for _ in range(4):
        x = ptir.functional.softmax(x * 2.0, axis=-1)
    return x


def test_devices_are_named_and_described(cupy: Target) -> None:
    first, other = cupy.backend.devices()
    assert (first.index, other.index) == (0, 1)
    assert (first.name, first.kind) == ("Pretended GPU", "discrete")
    assert first.detail == "sm_90, 4 GiB"
    assert cupy.backend.capabilities(first)["architecture"] == "sm_90"


def test_a_model_decodes_as_on_the_reference(cupy: Target, fake: FakeCupy, little: str) -> None:
    here, there = (ptir.load_model(little, backend=one) for one in (cupy, "ref"))
    how: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True}
    expected = there.generate([5, 3, 9], **how).token_ids
    assert len(set(expected)) > 2, "they are not all alike"
    for _ in range(3):
        fake.calls.clear()
        assert here.generate([5, 3, 9], **how).token_ids == expected
    assert fake.calls.count("graph") >= 2, "its last 18 steps are graphs of 16 and 2"
    assert "end_capture" not in fake.calls, "who does the same again has the same memory"


def test_what_runs_again_becomes_a_graph_of_the_same_memory(
    cupy: Target, fake: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "LEAST", 1)
    run = ptir.jit(chain)
    rng = np.random.default_rng(0)
    for _ in range(12):  # each result is given back before the next is made
        x = rng.standard_normal((3, 8)).astype(np.float32)
        expected = x.astype(np.float64)
        for _ in range(4):
            raised = np.exp(expected * 2 - (expected * 2).max(-1, keepdims=True))
            expected = raised / raised.sum(-1, keepdims=True)
        found = run(tensor(x, backend=cupy)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    assert fake.calls.count("graph") >= 4
    held = [run(tensor(np.ones((3, 8), np.float32), backend=cupy)) for _ in range(5)]
    for one in held:  # all are alive, so each has memory of its own
        np.testing.assert_allclose(one.numpy(), np.full((3, 8), 0.125), rtol=1e-6)


def test_what_other_threads_do_is_not_recorded(
    cupy: Target, fake: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that records takes whatever anybody queues on it, and cannot be waited for."""
    monkeypatch.setattr(launching, "LEAST", 1)
    run, other = ptir.jit(chain), ptir.jit(lambda x: x * 2.0 + 1.0)
    x = tensor(np.arange(12, dtype=np.float32).reshape(3, 4), backend=cupy)
    expected = run(x).numpy()
    begin, found = Stream.begin_capture, []

    def beside(stream: Stream) -> None:
        begin(stream)
        found.append(thread.submit(lambda: other(x).numpy()).result())

    monkeypatch.setattr(Stream, "begin_capture", beside)
    with ThreadPoolExecutor(1) as thread:
        for _ in range(4):
            assert run(x).numpy().tolist() == expected.tolist()
    assert "graph" in fake.calls and found
    for one in found:
        assert one.tolist() == (x.numpy() * 2 + 1).tolist()


def test_graphs_that_are_not_used_go(cupy: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "LEAST", 1)
    made = opened(cupy)
    built = made.build(
        made.dialect.prelude() + 'extern "C" __global__ void __launch_bounds__(64)'
        " f(f32 *x, const int items) { x[threadIdx.x] = blockIdx.x; }"
    )
    kernel = made.kernel(built, "f", 1)
    walk = made.record([(kernel, 4, 1)])
    memories = [made.allocate(256) for _ in range(launching.GRAPHS + 3)]
    for memory in memories * 3:
        made.bind(kernel, 0, memory)
        walk.bind_slot(0)
        walk.submit(1)
        made.finish()
    assert len(walk._met) == launching.GRAPHS


def test_weights_go_through_two_pinned_buffers(
    cupy: Target, fake: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "STAGED", 1000)
    made = opened(cupy)
    array = np.random.default_rng(1).integers(0, 255, 4321, dtype=np.uint8)
    memory = made.allocate(array.nbytes)
    made.send(memory, array)
    array_before, array[:] = array.copy(), 0  # it was read when ``send`` returned
    found = np.zeros_like(array)
    made.read(memory, found)  # on the other stream, which waits
    np.testing.assert_array_equal(found, array_before)
    assert len([held for held in fake.pinned if held.array.nbytes >= 1000]) == 2


def test_an_upload_waits_for_what_still_uses_its_memory(cupy: Target) -> None:
    made = opened(cupy)
    old, new = np.full(64, 1, np.uint8), np.full(64, 2, np.uint8)
    memory, kept, found = made.allocate(64), made.allocate(64), np.zeros(64, np.uint8)
    made.write(memory, old)
    made.copy(memory, kept, 64)  # still queued
    made.send(memory, new)
    made.read(kept, found)
    assert found.tolist() == old.tolist()
    made.read(memory, found)
    assert found.tolist() == new.tolist()


def test_a_fetch_does_not_wait_for_what_comes_later(cupy: Target, fake: FakeCupy) -> None:
    made = opened(cupy)
    memory, other = made.allocate(4), made.allocate(4)
    made.write(memory, np.array([7], np.int32))
    made.write(other, np.array([8], np.int32))
    found = np.zeros(1, np.int32)
    wait = made.fetch(memory, found)
    made.copy(other, memory, 4)
    queued = made.stream.queued
    wait()
    assert found.tolist() == [7]
    assert made.stream.done < queued


def test_kernels_are_timed_by_events_without_a_wait_between_them(
    cupy: Target, fake: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tensor(np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4), backend=cupy)
    run = ptir.jit(lambda x: (chain(x), x @ x.T))
    plain = [one.numpy() for one in run(given)]
    heard: list[events.Event] = []
    remove = events.subscribe(heard.append)
    clock = itertools.count(100)
    monkeypatch.setattr("fake_cupy.time.perf_counter", lambda: float(next(clock)))
    fake.calls.clear()
    try:
        with events.timing_parts():
            timed = run(given)
    finally:
        remove()
    waits = fake.calls.count("synchronize")
    (told,) = (one for one in heard if isinstance(one, events.ProgramRun))
    parts = run.plans[0].executable.explain().parts  # type: ignore[union-attr]
    assert len(told.parts) == len(parts) >= 2
    assert told.parts == pytest.approx([1.0] * len(parts)), "one event stands between two kernels"
    assert waits <= 4, "both streams behind all kernels, and behind the run"
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(timed, plain, strict=True))


def test_the_second_device_is_current_when_it_is_used(cupy: Target, fake: FakeCupy) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for target in (second(cupy), cupy, second(cupy)):
        found = ptir.jit(chain)(tensor(x, backend=target)).numpy()
        np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)
        assert fake.device == 0, "the caller's device stays current"
    assert set(fake.launched_on) == {0, 1}


@pytest.mark.usefixtures("built_anew")
@pytest.mark.parametrize("first", ["launch", "build", "load"])
def test_the_first_call_of_a_thread_may_be_any(cupy: Target, first: str) -> None:
    """The driver's calls need a context that is current in their thread."""
    given, again = tensor(np.ones((3, 4), np.float32), backend=cupy), ptir.jit(chain)
    again(given)
    made = opened(cupy)
    code = made.build(made.dialect.prelude()).code
    calls = {
        "launch": lambda: again(given),
        "build": lambda: ptir.jit(lambda x: x * 3.0)(given),
        "load": lambda: made.load("", code),
    }
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(calls[first]).result() is not None


@pytest.mark.usefixtures("built_anew")
@pytest.mark.parametrize(
    ("place", "raised", "kind"),
    [
        ("malloc", OutOfMemoryError("all is used"), OutOfMemory),
        ("memcpyAsync", CUDARuntimeError(2), OutOfMemory),
        ("memcpyAsync", CUDARuntimeError(700), DeviceLost),
        ("memcpyAsync", CUDARuntimeError(1), DeviceError),
        ("launchKernel", CUDADriverError(719), DeviceLost),
        ("launchKernel", CUDADriverError(1), DeviceError),
        ("moduleLoadData", CUDADriverError(209), DeviceError),
    ],
)
def test_errors_are_those_of_the_contract(
    cupy: Target, fake: FakeCupy, place: str, raised: Exception, kind: type[Exception]
) -> None:
    made = opened(cupy)
    fake.fails[place] = raised
    with pytest.raises(DeviceError) as said:
        ptir.jit(lambda x: x * 3.0 - 1.0)(tensor(np.ones(5, np.float32), backend=cupy)).numpy()
    assert type(said.value) is kind, said.value
    assert "Pretended GPU" in str(said.value)
    assert str(raised) in str(said.value)
    assert made.lost is (kind is DeviceLost)
    fake.fails.clear()
    found = ptir.jit(lambda x: x * 3.0 - 1.0)(tensor(np.ones(5, np.float32), backend=cupy))
    assert found.numpy().tolist() == [2.0] * 5


def test_more_memory_than_there_is_is_refused_by_name(cupy: Target, fake: FakeCupy) -> None:
    with pytest.raises(OutOfMemory, match=f"has {fake.nbytes} bytes, {fake.nbytes + 1} are needed"):
        opened(cupy).allocate(fake.nbytes + 1)


def test_machine_code_that_the_driver_refuses_is_made_again(cupy: Target, fake: FakeCupy) -> None:
    made = opened(cupy)
    assert made.load("", b"not machine code") is None
    fake.fails["moduleLoadData"] = CUDADriverError(209)
    assert made.load("", b"of another driver") is None


def test_tensors_are_shared_where_they_lie(
    cupy: Target, fake: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[Any] = []
    fake.cuda.UnownedMemory = lambda *given: SimpleNamespace(given=given)
    fake.cuda.MemoryPointer = lambda memory, offset: (memory, offset)
    fake.ndarray = lambda *given: shared.append(given)
    backend = cupy.backend
    handle = backend.upload(np.ones((2, 3), np.float32), cupy.device)
    backend.export(handle, cupy.device)
    (shape, dtype, (memory, offset)) = shared[0]
    assert (shape, dtype, offset) == ((2, 3), np.float32, 0)
    address, nbytes, owner, number = memory.given
    assert (address, nbytes, number) == (handle.memory.address, 24, 0)
    assert owner is handle
    assert opened(cupy).stream.commands == opened(cupy)._uploads.commands  # both are empty
    import ml_dtypes

    half = backend.upload(np.ones(2, ml_dtypes.bfloat16), cupy.device)
    with pytest.raises(ptir.errors.UnsupportedError, match=r"bf16 .*cast it to f32"):
        backend.export(half, cupy.device)


def test_a_build_that_fails_is_a_compile_error(
    cupy: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CompileError):
        opened(cupy).build(opened(cupy).dialect.prelude() + "int nothing = ;")
