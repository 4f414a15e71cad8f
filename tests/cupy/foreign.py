"""Tensors of another library on the pretended GPU: they speak DLPack, and go with the capsule.

The structure is NumPy's own, in which the device is changed. The library has a stream of its own,
on which the elements are still to be written; it ties streams together as the protocol says.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
from fake_cupy import FakeCupy

CUDA = 2
DEVICE, NUMBER, CODE, INSIDE = 8, 12, 20, 32  # bytes into ``DLTensor``, and of that in its owner


class Foreign:
    """``array`` on a device, once its library's stream has come so far."""

    def __init__(
        self,
        fake: FakeCupy,
        array: Any,
        *,
        number: int = 0,
        versions: bool = True,
        skip: int = 0,
        code: int | None = None,
        major: int = 1,
    ) -> None:
        """``skip`` bytes behind a begin of memory; ``code`` says another type than the array."""
        before, fake.device = fake.device, number
        self.stream = fake.cuda.Stream(non_blocking=True)
        fake.device = before
        self.fake, self.number, self.versions = fake, number, versions
        self.code, self.major = code, major
        room = np.full(array.nbytes + 256, 0xFF, np.uint8)
        fake.kept.append(room)  # what is freed stays readable, as on a GPU
        first = -room.ctypes.data % 256 + skip
        self.base = room[first : first + array.nbytes]
        # a view of its own, which dies with the capsule
        held = np.frombuffer(memoryview(self.base), array.dtype).reshape(array.shape)
        self.array: Any = np.lib.stride_tricks.as_strided(held, array.shape, held.strides)
        self.freed: list[bool] = []
        base, freed = self.base, self.freed

        def free() -> None:
            base[:] = 0xFF
            freed.append(True)

        weakref.finalize(self.array, free)
        source, target = array.copy(), self.base
        self.queue(lambda: target.__setitem__(slice(None), source.view(np.uint8).reshape(-1)))
        self.streams: list[int] = []

    def queue(self, command: Any) -> None:
        before, self.fake.device = self.fake.device, self.number
        self.stream._add(command)
        self.fake.device = before

    @property
    def address(self) -> int:
        return int(self.base.ctypes.data)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.number

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if options and not self.versions:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        if stream is not None:
            self.streams.append(stream)
            self.fake.streams[stream].wait_event(self.stream.record())
        capsule = self.array.__dlpack__(**options)
        change(capsule, DEVICE, ctypes.c_int32, CUDA)
        change(capsule, NUMBER, ctypes.c_int32, self.number)
        if self.code is not None:
            change(capsule, CODE, ctypes.c_uint8, self.code)
        if self.versions:
            change(capsule, -INSIDE, ctypes.c_uint32, self.major)
        return capsule


def change(capsule: Any, at: int, kind: Any, value: int) -> None:
    """Write into the ``DLTensor`` of a capsule."""
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    name = name_of(capsule)
    inside = INSIDE if name == b"dltensor_versioned" else 0
    kind.from_address(pointer_of(capsule, name) + inside + at).value = value
