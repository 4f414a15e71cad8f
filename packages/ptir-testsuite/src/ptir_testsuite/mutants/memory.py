"""Impostors in what they leave in memory, and in how they read the arrays that are lent to them.

They lie with poison, beside fences and in odd layouts: where those were missing, they would pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from ptir.backend import Device
from ptir.errors import DeviceError
from ptir.ir.program import Instruction
from ptir.types import TensorType, dtype_of
from ptir_testsuite.mutants.harness import Correct
from ptir_testsuite.mutants.impostors import impostor
from ptir_testsuite.mutants.lifetimes import Placed, Placing
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running.outcomes import Outcome


@impostor("leaves the last element as memory is", "add", Outcome.MISMATCH)
class Short(Placing):
    """Has an error by one at the other end."""

    def write(self, tensor: Placed, array: Array) -> None:
        """All elements but the last of several."""
        count = max(1, array.size - 1)
        tensor.array.reshape(-1)[:count] = array.reshape(-1)[:count]

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Any:
        """All elements: only kernels are wrong."""
        made = Placed(TensorType(dtype_of(array), array.shape), self.arena)
        made.array[...] = array
        return made


@impostor("adds to what lies in fresh memory", "reduce", Outcome.MISMATCH)
class Adding(Placing):
    """Starts its sums with nothing stored."""

    def step(
        self, instruction: Instruction, operands: Sequence[Any], device: Device
    ) -> tuple[Any, ...]:
        """Sums of integers on top of what was there."""
        if instruction.op != "reduce" or instruction.attributes["kind"] != "sum":
            return super().step(instruction, operands, device)
        (sums,) = Correct.step(self, instruction, [x.array for x in operands], device)
        made = Placed(instruction.types[0], self.arena)
        made.array[...] = made.array + sums if sums.dtype.kind in "iu" else sums
        return (made,)


@impostor("writes one element before the first", "add", Outcome.MISMATCH)
class Before(Placing):
    """Counts from 1."""

    def step(
        self, instruction: Instruction, operands: Sequence[Any], device: Device
    ) -> tuple[Any, ...]:
        """The results, and one element in front."""
        found = super().step(instruction, operands, device)
        for tensor in found:
            first = max(0, tensor.start - tensor.type.dtype.itemsize)
            tensor.memory[first : tensor.start] = 0
        return found


@impostor("downloads are its own memory", "add", Outcome.MISMATCH)
class Viewing(Placing):
    """Saves a copy, which is seen when the memory is used again."""

    def download(self, handle: Any, device: Device) -> Array:
        """No copy."""
        found: Array = handle.array
        return found


def _raw(address: int, nbytes: int, like: Array) -> Array:
    """Memory as it lies, taken for a dense array."""
    data = np.frombuffer(ctypes.string_at(address, nbytes), np.uint8)
    return data.view(like.dtype).reshape(like.shape).copy()


@impostor("reads lent arrays from an aligned address", "add", Outcome.MISMATCH)
class Aligning(Correct):
    """Rounds addresses down."""

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Array:
        """The bytes from there."""
        if not array.size or not array.flags.c_contiguous:
            return super().upload(array, device, borrow=borrow)
        step = array.dtype.itemsize
        return _raw(array.ctypes.data // step * step, array.nbytes, array)


@impostor("takes rows to follow one another", "add", Outcome.MISMATCH)
class Dense(Correct):
    """Looks at strides only to see whether they are negative."""

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Array:
        """As many bytes as there are elements, from the first on."""
        if not array.size or any(stride < 0 for stride in array.strides):
            return super().upload(array, device, borrow=borrow)
        return _raw(array.ctypes.data, array.nbytes, array)


@impostor("wants to write into what it is lent", "add", Outcome.ERROR)
class Writing(Correct):
    """Asks for a writable buffer."""

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Array:
        """An error of its own for read-only arrays."""
        if not array.flags.writeable:
            raise DeviceError("the array is read-only")
        return super().upload(array, device, borrow=borrow)
