"""What devices behind drivers share: errors by number, kernels by line, addresses by run."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest

from ptir.codegen.api import Addressed, Block, Failures, kernel_at
from ptir.errors import DeviceError, DeviceLost, OutOfMemory

FAILURES = Failures("x", "code", frozenset((2,)), frozenset((7,)), "the machine is started again")


class RaisedError(Exception):
    def __init__(self, code: int, said: str = "it says so") -> None:
        super().__init__(said)
        self.code = code


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RaisedError(2), OutOfMemory, "it says so; use a smaller batch, context or dtype"),
        (MemoryError(), OutOfMemory, "failed: MemoryError; use a smaller"),
        (
            RaisedError(7),
            DeviceLost,
            "it held is gone, and the machine is started again; if that fails",
        ),
        (RaisedError(3), DeviceError, "x: upload on 'it' failed: it says so"),
    ],
)
def test_a_drivers_number_says_which_error_it_is(
    error: Exception, kind: type[DeviceError], words: str
) -> None:
    found = FAILURES.typed("upload", "it", error)
    assert type(found) is kind and words in str(found)


def test_the_kernel_of_a_line_is_the_last_that_begins_before_it() -> None:
    source, begins = (
        "int a;\nvoid f() {\n x\n}\nvoid g() {\n y\n}\n",
        re.compile(r"^void (\w+)", re.M),
    )
    assert [kernel_at(source, line, begins) for line in (1, 2, 4, 5, 6)] == [None, *"ffgg"]


def test_a_part_is_further_on_and_keeps_the_owner() -> None:
    owner = object()
    part = Addressed(1000, 64, owner).part(16, 8)
    assert (part.address, part.nbytes, part.owner) == (1016, 8, owner)


class Kernel:
    def __init__(self, *addresses: int) -> None:
        self.addresses: Any = (ctypes.c_uint64 * len(addresses))(*addresses)

    def take(self, addresses: Any) -> None:
        self.addresses = addresses


def test_a_block_holds_what_kernels_are_bound_to_run_by_run() -> None:
    kernels = Kernel(1, 2), Kernel(3)
    block = Block(kernels, 2)
    assert [*kernels[0].addresses, *kernels[1].addresses] == [1, 2, 3]
    block.hold(0)
    kernels[1].addresses[0] = 4
    block.hold(1)
    held = (ctypes.c_uint64 * 6).from_buffer_copy(block.bytes_of(2))
    assert [*held] == [1, 2, 3, 1, 2, 4] and block.offsets == [0, 16]
    block.recall(0)
    assert [*kernels[1].addresses] == [3]
