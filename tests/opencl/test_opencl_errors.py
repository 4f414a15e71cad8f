"""What can go wrong on a device: typed errors that name it, and a device that works afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture.creation import tensor
from ptir.capture.lazy import buffer_of
from ptir.errors import (
    CompileError,
    DeviceError,
    DeviceLost,
    OutOfMemory,
    PtirError,
    UnsupportedError,
)
from ptir.types import U8, TensorType, spec

cl = pytest.importorskip("pyopencl")


def still_works(target: Target) -> None:
    x = np.arange(6, dtype=np.float32)
    found = ptir.jit(lambda x: x * 2.0 + 1.0)(tensor(x, backend=target)).numpy()
    np.testing.assert_array_equal(found, x * 2 + 1)


def driver_error(code: str) -> Exception:
    record = cl._cl._ErrorRecord(
        msg=f"clSomething failed: {code}", code=getattr(cl.status_code, code), routine="clSomething"
    )
    kind = cl.MemoryError if code.startswith(("MEM", "OUT")) else cl.RuntimeError
    error: Exception = kind(record)
    return error


def raising(error: Exception) -> Any:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    return fails


def test_a_value_larger_than_the_largest_allocation_is_refused_by_name(opencl: Target) -> None:
    largest = opencl.backend.opened(opencl.device).device.traits.max_allocation_bytes
    elements = largest // 4 + 1
    one = tensor(np.ones(1, np.float32), backend=opencl)
    words = (
        rf"the result of add at .*: f32\[{elements}\] takes {4 * elements} bytes in memory and the"
        rf" device's largest allocation is {largest} bytes; use a smaller batch"
    )
    with pytest.raises(UnsupportedError, match=words):
        ptir.jit(lambda x: x + F.full((elements,), 2.0))(one).numpy()
    found = ptir.jit(lambda x: (x + F.full((elements,), 2.0))[:3])(one).numpy()
    assert found.tolist() == [3, 3, 3]  # what lies in no memory may be of any size
    still_works(opencl)


def test_memory_larger_than_the_largest_allocation_is_refused_by_name(opencl: Target) -> None:
    opened = opencl.backend.opened(opencl.device)
    largest = opened.device.traits.max_allocation_bytes
    before = opencl.backend.memory_stats(opencl.device).live_bytes
    with pytest.raises(OutOfMemory, match=f"at most {largest} bytes in one piece, ") as said:
        opened.pool.allocate(TensorType(U8, (largest + 1,)))
    assert opencl.device.name in str(said.value)
    assert opencl.backend.memory_stats(opencl.device).live_bytes == before
    still_works(opencl)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("MEM_OBJECT_ALLOCATION_FAILURE", OutOfMemory),
        ("OUT_OF_RESOURCES", OutOfMemory),
        ("DEVICE_NOT_AVAILABLE", DeviceLost),
        ("INVALID_COMMAND_QUEUE", DeviceLost),
        ("INVALID_VALUE", DeviceError),
    ],
)
def test_a_failing_launch_is_typed_and_the_next_program_runs(
    opencl: Target, monkeypatch: pytest.MonkeyPatch, code: str, error: type[PtirError]
) -> None:
    work = ptir.jit(lambda x: x * 3.0)
    x = tensor(np.ones(5, np.float32), backend=opencl)
    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_nd_range_kernel", raising(driver_error(code)))
        with pytest.raises(DeviceError, match=rf"launch of kernel \w+ on .*{code}") as said:
            work(x).numpy()
    assert type(said.value) is error
    assert opencl.device.name in str(said.value)
    if error is DeviceLost:
        with pytest.raises(DeviceLost, match="on a device that was lost; make it again"):
            work(x).numpy()
        x = tensor(np.ones(5, np.float32), backend=opencl)
    np.testing.assert_array_equal(work(x).numpy(), np.full(5, 3.0))
    still_works(opencl)


def lose(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver give the device up in the middle of a run."""
    x = tensor(np.ones(5, np.float32), backend=target)
    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_nd_range_kernel", raising(driver_error("DEVICE_NOT_AVAILABLE")))
        with pytest.raises(DeviceLost):
            ptir.jit(lambda x: x * 5.0)(x).numpy()


def test_what_a_lost_device_held_is_gone_by_name(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tensor(np.ones(5, np.float32), backend=opencl)
    program = ptir.capture(lambda x: x * 2.0, spec("f32", 5))
    executable = opencl.backend.compile(program, opencl.device, Options())
    incarnation = opencl.backend.incarnation(opencl.device)
    lose(opencl, monkeypatch)
    assert opencl.backend.incarnation(opencl.device) == incarnation + 1
    handle = opencl.backend.upload(np.ones(5, np.float32), opencl.device)
    with pytest.raises(DeviceLost, match="after the program was compiled; compile it again"):
        executable.run([handle])
    with pytest.raises(DeviceLost, match="a tensor was on a device that was lost"):
        held.numpy()
    with pytest.raises(DeviceLost, match="a tensor was on a device that was lost"):
        opencl.backend.copy(buffer_of(held.ref).handle, opencl.device)
    again = opencl.backend.compile(program, opencl.device, Options())
    (result,) = again.run([handle])
    assert opencl.backend.download(result, opencl.device).tolist() == [2.0] * 5


def test_a_model_goes_on_after_its_device_was_lost(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ptir.load_model("random:gpt2-tiny", backend=opencl)
    first = model.generate([5, 100, 7], max_tokens=4, temperature=0.0).token_ids
    lose(opencl, monkeypatch)
    assert model.generate([5, 100, 7], max_tokens=4, temperature=0.0).token_ids == first


def test_a_captured_constant_of_a_lost_device_is_computed_again(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = ptir.jit(lambda x: x + np.arange(5, dtype=np.float32))
    x = np.ones(5, np.float32)
    for _ in range(2):
        found = work(tensor(x, backend=opencl)).numpy()
        np.testing.assert_array_equal(found, x + np.arange(5))
        lose(opencl, monkeypatch)


def test_memory_kept_for_reuse_is_given_up_before_an_allocation_fails(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opencl.backend.opened(opencl.device).pool
    pool.release(pool.take(4099), 4099)
    pool.defer_free(bytearray(100), 100)
    live = pool.stats().live_bytes
    buffer, calls = cl.Buffer, list[int]()

    def once(*given: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 1:
            raise driver_error("MEM_OBJECT_ALLOCATION_FAILURE")
        return buffer(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(cl, "Buffer", once)
        memory = pool.take(7001)
    assert len(calls) == 2 and memory.size == 7001
    assert pool.stats().live_bytes == live + 7001
    assert not pool._retired and not any(pool._free.values())
    pool.release(memory, 7001)
    still_works(opencl)


def test_a_failing_allocation_leaves_the_counters_right(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opencl.backend.memory_stats(opencl.device).live_bytes
    with monkeypatch.context() as patch:
        patch.setattr(cl, "Buffer", raising(driver_error("MEM_OBJECT_ALLOCATION_FAILURE")))
        with pytest.raises(OutOfMemory, match=r"allocation of 40028 bytes .*smaller batch"):
            opencl.backend.upload(np.ones(10007, np.float32), opencl.device)
    assert opencl.backend.memory_stats(opencl.device).live_bytes <= before
    still_works(opencl)


def test_a_failed_build_names_the_kernel_and_the_first_error(opencl: Target) -> None:
    device = opencl.backend.opened(opencl.device).device
    lines = [
        "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))",
        "void good_0(__global float *x) { x[0] = 1; }",
        "",
        "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))",
        "void bad_1(__global float *x) {",
        "  x[0] = nobody;",
        "  x[1] = nothing;",
        "}",
    ]
    with pytest.raises(CompileError, match=r"in kernel 'bad_1': .*undeclared.*'nobody'") as said:
        device.build("\n".join(lines))
    assert opencl.device.name in str(said.value)
    assert "nothing" not in str(said.value)
    still_works(opencl)
