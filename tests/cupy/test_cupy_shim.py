"""The host shim itself: faults of kernels that it must find, and kernels that are right."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ptir.backend.contract import Target
from ptir.errors import DeviceError

REVERSED = """
  __shared__ __align__(16) i32 room[64];
  room[threadIdx.x] = b0[threadIdx.x];
  __syncthreads();
  b0[threadIdx.x] = room[63 - threadIdx.x];
"""
SUM = """
  i32 x = b0[threadIdx.x];
  for (int by = 16; by; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
  b0[threadIdx.x] = x;
"""
ONE_WARP = """
  i32 x = b0[threadIdx.x];
  if (threadIdx.x < 32) x += __shfl_xor_sync(0xffffffffu, x, 1);
  __syncthreads();
  b0[threadIdx.x] = x;
"""


def run(host: Target, body: str, times: int = 2) -> list[list[int]]:
    """What a kernel of one block of 64 threads makes of 0 .. 63, launch after launch."""
    device: Any = host.backend.opened(host.device).device  # type: ignore[attr-defined]
    text = f'\nextern "C" __global__ void __launch_bounds__(64) k(i32 *b0) {{{body}}}\n'
    kernel = device.kernel(device.build(device.dialect.prelude() + text), "k", 1)
    memory, found = device.allocate(256), []
    device.bind(kernel, 0, memory)
    for _ in range(times):
        array = np.arange(64, dtype=np.int32)
        device.write(memory, array)
        device.launch(kernel, 1, 64)
        device.read(memory, array)
        found.append(array.tolist())
    return found


def test_threads_meet_at_barriers_and_shuffles(host: Target) -> None:
    assert run(host, REVERSED) == [list(range(63, -1, -1))] * 2
    sums = [sum(range(32))] * 32 + [sum(range(32, 64))] * 32
    assert run(host, SUM) == [sums] * 2
    swapped = [n + (n ^ 1) if n < 32 else n for n in range(64)]
    assert run(host, ONE_WARP) == [swapped] * 2


def test_launches_of_several_threads_follow_one_another(host: Target) -> None:
    """Kernels of a file have one ``threadIdx``, and a launch lets other threads of Python go on."""
    device: Any = host.backend.opened(host.device).device  # type: ignore[attr-defined]
    body = "for (int n = 0; n < 20000; ++n) ((volatile i32 *)b0)[threadIdx.x] += 1;"
    text = f'\nextern "C" __global__ void __launch_bounds__(64) k(i32 *b0) {{{body}}}\n'
    built = device.build(device.dialect.prelude() + text)

    def launched(_: int) -> list[int]:
        kernel, memory = device.kernel(built, "k", 1), device.allocate(256)
        array = np.arange(64, dtype=np.int32)
        device.write(memory, array)
        device.bind(kernel, 0, memory)
        device.launch(kernel, 1, 64)
        device.read(memory, array)
        return [int(value) for value in array]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(launched, range(16)))
    assert found == [list(range(20000, 20064))] * 16


def test_a_missing_barrier_changes_numbers(host: Target) -> None:
    wrong = run(host, REVERSED.replace("__syncthreads();", ""))
    assert all(found != list(range(63, -1, -1)) for found in wrong)


def test_what_is_right_in_one_order_only_is_wrong_in_the_other(host: Target) -> None:
    neighbour = REVERSED.replace("63 - threadIdx.x", "threadIdx.x & ~1")
    right = [n & ~1 for n in range(64)]
    assert run(host, neighbour) == [right] * 2
    found = run(host, neighbour.replace("__syncthreads();", ""))
    assert sorted(one == right for one in found) == [False, True]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("if (threadIdx.x < 40) __syncthreads();", "wait at a barrier and others have returned"),
        (
            SUM.replace("0xffffffffu", "0x0000ffffu"),
            "shuffle names other threads than those that are there",
        ),
        (
            "if (threadIdx.x % 2) b0[0] = __shfl_xor_sync(0xffffffffu, b0[1], 2);",
            "shuffle names other threads than those that are there",
        ),
        ("b0[64 + threadIdx.x] = 1;", r"block 0, thread \d+: memory is touched that is not"),
        ("b0[0] = b0[-1 - (int)threadIdx.x * 1024];", "memory is touched that is not a buffer's"),
        (
            "*(uint4 *)(b0 + 1) = make_uint4(1, 2, 3, threadIdx.x);",
            "an address is not a multiple of what its type needs",
        ),
    ],
    ids=("divergence", "mask", "absent", "write", "read", "alignment"),
)
def test_faults_are_named(host: Target, body: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        run(host, body)
    assert run(host, SUM)[0][0] == sum(range(32)), "the process goes on"


def test_threads_that_meet_need_to_be_said_to(host: Target) -> None:
    hidden = "#define MEET __sync##threads\n"
    device: Any = host.backend.opened(host.device).device  # type: ignore[attr-defined]
    text = hidden + 'extern "C" __global__ void __launch_bounds__(64) k(i32 *b0) { MEET(); }\n'
    kernel = device.kernel(device.build(device.dialect.prelude() + text), "k", 1)
    device.bind(kernel, 0, device.allocate(256))
    with pytest.raises(DeviceError, match="launched as if they did not"):
        device.launch(kernel, 1, 64)
