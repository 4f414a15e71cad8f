"""What devices behind drivers share: errors by number, kernels by line, addresses by run."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from ptir.codegen.api import (
    Addressed,
    AddressedDevice,
    AddressedKernel,
    Block,
    DriverDevice,
    Failures,
    PaperDevice,
    Traits,
    in_kernel,
)
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
    places = [re.search(r"(\d)", f"x:{line}: error") for line in (1, 2, 4, 5, 6)]
    found = [in_kernel(source, place, begins) for place in (None, *places)]
    assert found == ["", "", *(f" in kernel {name!r}" for name in "ffgg")]


def test_a_part_is_further_on_and_keeps_the_owner() -> None:
    owner = object()
    part = Addressed(1000, 64, owner).part(16, 8)
    assert (part.address, part.nbytes, part.owner) == (1016, 8, owner)


class Paper(AddressedDevice, DriverDevice, PaperDevice):  # type: ignore[misc]
    """A driver that allocates, and does nothing else."""

    traits = Traits(
        compute_units=1, has_f64=True, max_allocation_bytes=100, alignment=4, identity="it"
    )
    name, failures, raised = "it", FAILURES, (RaisedError,)
    allocate = DriverDevice.allocate

    def fresh(self, nbytes: int) -> Addressed:
        if nbytes > 90:
            raise RaisedError(2)
        return Addressed(1000, nbytes, None)


def test_a_driver_is_not_asked_for_more_than_it_allocates_in_one_piece() -> None:
    device = Paper()
    assert device.allocate(90).nbytes == 90
    with pytest.raises(OutOfMemory, match="allocation of 100 bytes on 'it' failed: it says so"):
        device.allocate(100)
    with pytest.raises(OutOfMemory, match=r"x: 'it' holds at most 100 bytes .* 101 are needed"):
        device.allocate(101)


def test_addresses_are_bound_one_by_one_and_all_at_once() -> None:
    device, kernels = Paper(), (AddressedKernel(2), AddressedKernel(1))
    device.bind(kernels[0], 0, Addressed(16, 4, None))
    block = Block(kernels, 1)
    device.binder([(kernels[0], 1), (kernels[1], 0)])(Addressed(32, 4, None))
    assert [*kernels[0].addresses, *kernels[1].addresses] == [16, 32, 32]
    block.hold(0)
    assert [*(ctypes.c_void_p * 3).from_buffer_copy(block.bytes_of(1))] == [16, 32, 32]


def test_memory_on_paper_is_told_apart_and_holds_nothing() -> None:
    device = PaperDevice()
    pieces = [device.allocate(8), device.allocate(8)]
    pieces.append(device.subspan(pieces[0], 0, 8))
    assert len({id(piece) for piece in pieces}) == 3
    array = np.ones(2)
    device.write(pieces[0], array)
    device.read(pieces[0], array)
    assert not array.any()


def kernel(*addresses: int) -> AddressedKernel:
    made = AddressedKernel(len(addresses))
    made.addresses[:] = addresses
    return made


def test_a_block_holds_what_kernels_are_bound_to_run_by_run() -> None:
    kernels = kernel(1, 2), kernel(3)
    block = Block(kernels, 2)
    assert [*kernels[0].addresses, *kernels[1].addresses] == [1, 2, 3]
    block.hold(0)
    kernels[1].addresses[0] = 4
    block.hold(1)
    held = (ctypes.c_uint64 * 6).from_buffer_copy(block.bytes_of(2))
    assert [*held] == [1, 2, 3, 1, 2, 4] and block.offsets == [0, 16]
    block.recall(0)
    assert [*kernels[1].addresses] == [3]
