"""Memory: lent arrays are never copied, allocations are aligned and come back, limits are named."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from ptir.backend.contract import Target
from ptir.errors import OutOfMemory
from ptir_backend_c.device import CDevice


@pytest.fixture
def device(c: Target) -> CDevice:
    found = c.backend.opened(c.device).device
    assert isinstance(found, CDevice)
    return found


@pytest.mark.parametrize("skip", range(4))
def test_a_lent_array_is_not_copied_wherever_it_lies(c: Target, skip: int) -> None:
    whole = np.arange(4096, dtype=np.float32)
    uploaded = c.backend.stats(c.device).bytes_uploaded
    handle = c.backend.upload(whole[skip:], c.device, borrow=True)
    assert handle.memory.address == whole.ctypes.data + 4 * skip
    assert c.backend.stats(c.device).bytes_uploaded == uploaded


def test_an_array_whose_elements_are_not_aligned_is_copied(c: Target) -> None:
    odd = np.frombuffer(b"x" + np.arange(8, dtype=np.float32).tobytes(), np.float32, 8, 1)
    assert not odd.flags.aligned
    handle = c.backend.upload(odd, c.device, borrow=True)
    assert handle.memory.address % 64 == 0
    np.testing.assert_array_equal(c.backend.download(handle, c.device), np.arange(8))


def test_allocations_are_aligned_and_given_back(device: CDevice) -> None:
    memory: Any = device.allocate(1000)
    assert memory.address % 64 == 0
    part = device.subspan(memory, 128, 64)
    assert part.address == memory.address + 128
    given_back = weakref.ref(memory.owner)
    del memory
    gc.collect()
    assert given_back() is not None  # the part keeps it
    del part
    gc.collect()
    assert given_back() is None


def test_memory_that_dies_in_a_cycle_is_whole_when_it_is_used_again(c: Target) -> None:
    class Node:
        pass

    for turn in range(3):
        node: Any = Node()
        node.itself = node
        node.handle = c.backend.upload(np.full(1 << 18, turn, np.float32), c.device)
        del node
        gc.collect()  # the pool has the memory now
        again = c.backend.upload(np.full(1 << 18, 7.0, np.float32), c.device)
        np.testing.assert_array_equal(c.backend.download(again, c.device), 7.0)


def test_more_than_the_machine_has_is_refused(device: CDevice) -> None:
    with pytest.raises(OutOfMemory, match=rf"c: {1 << 60} bytes are needed in one piece"):
        device.allocate(1 << 60)


def test_an_allocation_that_fails_is_an_error_of_ours(
    device: CDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*shape: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(np, "empty", failing)
    with pytest.raises(OutOfMemory, match="c: allocation of 64 bytes failed; use a smaller batch"):
        device.allocate(64)


def test_a_built_file_leaves_with_its_last_kernel(device: CDevice) -> None:
    built: Any = device.build("void f(void *const *buffers, const int item) {}")
    close = built.close
    kernel: Any = device.kernel(built, "f", 0)
    del built
    gc.collect()
    assert close.alive
    del kernel
    gc.collect()
    assert not close.alive
