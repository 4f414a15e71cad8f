"""Tensors of other libraries on a GPU, by DLPack: where they lie, what they are, who keeps them.

A library gives a capsule around a C structure and frees its tensor with the capsule, unless
somebody took the structure over. Nobody does here: keeping the capsule is keeping the memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

from ptir.errors import UnsupportedError
from ptir.types import TensorType, dtype

CUDA: Final = 2
"""``kDLCUDA``."""
VERSION: Final = (1, 0)
"""What is asked for; a library may give a capsule of before versions."""
NAMES: Final = (b"dltensor_versioned", b"dltensor")

SIGNED, UNSIGNED, FLOAT, BFLOAT, BOOLEAN, E4M3FN, E5M2 = 0, 1, 2, 4, 6, 10, 12
TYPES: Final = {
    **{(SIGNED, bits): f"i{bits}" for bits in (8, 16, 32, 64)},
    **{(UNSIGNED, bits): f"u{bits}" for bits in (8, 16, 32, 64)},
    **{(FLOAT, bits): f"f{bits}" for bits in (16, 32, 64)},
    **{(BFLOAT, 16): "bf16", (BOOLEAN, 8): "bool", (E4M3FN, 8): "f8e4m3fn", (E5M2, 8): "f8e5m2"},
}
"""Element types by code and bits."""


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``; the older structure begins with the tensor."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


@dataclass(frozen=True)
class Imported:
    """A dense tensor of another library: its address, its type, and the capsule that keeps it."""

    address: int
    type: TensorType
    capsule: object


def lies_on(value: Any, number: int) -> bool:
    """Whether a DLPack object lies on the CUDA device of that number."""
    return tuple(map(int, value.__dlpack_device__())) == (CUDA, number)


def import_dlpack(value: Any, stream: int) -> Imported:
    """The tensor, once its library has made ``stream`` wait for what it has queued.

    Raises ``UnsupportedError`` for what is not dense, for element types that PTIR lacks, and for
    what the library does not lend.
    """
    capsule = _capsule(value, stream)
    tensor = _tensor_of(capsule)
    shape = tuple(tensor.shape[: tensor.ndim])
    name = TYPES.get((tensor.code, tensor.bits))
    if name is None or tensor.lanes != 1:
        raise UnsupportedError(
            f"cupy: a DLPack tensor of type code {tensor.code} with {tensor.bits} bits and"
            f" {tensor.lanes} lanes; cast it to one of {', '.join(TYPES.values())}"
        )
    if tensor.strides and not _is_dense(shape, tensor.strides[: tensor.ndim]):
        strides = tuple(tensor.strides[: tensor.ndim])
        raise UnsupportedError(
            f"cupy: a DLPack tensor of shape {shape} with strides {strides} is not dense; copy it"
            " first (`contiguous()` in PyTorch, `ascontiguousarray` in CuPy)"
        )
    return Imported(tensor.data + tensor.byte_offset, TensorType(dtype(name), shape), capsule)


def _capsule(value: Any, stream: int) -> object:
    try:
        try:
            return value.__dlpack__(stream=stream, max_version=VERSION)
        except TypeError:  # from before versions
            return value.__dlpack__(stream=stream)
    except BufferError as error:
        raise UnsupportedError(
            f"cupy: {type(value).__name__} is not lent: {error}; give a plain tensor"
            " (`detach()` in PyTorch)"
        ) from error


def _tensor_of(capsule: object) -> _Tensor:
    """The structure in a capsule that nobody has taken."""
    name = _name_of(capsule)
    if name not in NAMES:
        raise UnsupportedError(
            f"cupy: a DLPack capsule called {name!r} was used already; call `__dlpack__` again for"
            " another"
        )
    pointer = _pointer_of(capsule, name)
    if name != NAMES[0]:
        return _Tensor.from_address(pointer)
    found = _Versioned.from_address(pointer)
    if found.major != VERSION[0]:
        raise UnsupportedError(
            f"cupy: a DLPack tensor of version {found.major}.{found.minor}; 1.x and older are read:"
            " export it as one of these"
        )
    return found.tensor  # type: ignore[no-any-return]


def _is_dense(shape: tuple[int, ...], strides: list[int]) -> bool:
    """Whether elements follow one another, the last axis fastest."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return 0 in shape
        step *= size
    return True
