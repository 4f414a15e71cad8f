"""Tensors from nothing or from several: full, constant, arange, concat, stack, take."""

from __future__ import annotations

from collections.abc import Sequence

from ptir.capture import Tensor, call
from ptir.capture.operands import Scalar
from ptir.capture.promote import promote, scalar_dtype
from ptir.capture.tensor import full as filled
from ptir.errors import TypeRuleError
from ptir.ops.record import literal, type_error
from ptir.types import BOOL, I32, DType
from ptir.types import dtype as dtype_named


def full(shape: Sequence[int], value: Scalar, dtype: str | DType | None = None) -> Tensor:
    """A tensor of ``shape`` that holds ``value`` everywhere; f32, i32 or bool unless said."""
    default = BOOL if isinstance(value, bool) else scalar_dtype(value, BOOL)
    return filled(value, default if dtype is None else dtype_named(dtype), tuple(shape))


def constant(values: Sequence[float]) -> Tensor:
    """A vector of known numbers, each rounded to f32 once; it is a constant of the program."""
    import numpy as np

    return call("constant", value=literal(np.asarray(values, np.float32).reshape(-1)))


def arange(count: int, dtype: str | DType = I32) -> Tensor:
    """The numbers 0 to ``count`` - 1 along one axis, i32 unless said."""
    return call("iota", shape=(count,), dtype=dtype_named(dtype), axis=0)


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors one after the other along ``axis``, promoted to one element type."""
    promoted = _promoted("concat", tensors)
    return call("concat", *promoted, axis=_axis("concat", promoted, axis, promoted[0].ndim))


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors, all of one shape, side by side along a new axis at ``axis``."""
    promoted = _promoted("stack", tensors)
    at = _axis("stack", promoted, axis, promoted[0].ndim + 1)
    for tensor in promoted[1:]:
        if tensor.shape != promoted[0].shape:
            raise _error("stack", promoted, "shapes differ; all must be equal")
    shape = (*promoted[0].shape[:at], 1, *promoted[0].shape[at:])
    return call("concat", *(tensor.reshape(shape) for tensor in promoted), axis=at)


def take(tensor: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """Slices of ``axis`` by index; the axes of ``indices`` (integers, clamped) replace it."""
    return call("take", tensor, indices, axis=_axis("take", (tensor,), axis, tensor.ndim))


def _promoted(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    if not tensors:
        raise type_error(name, (), "no tensors given; at least one is needed")
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            message = f"tensors[{number}] is {kind}, not a Tensor; make one with ptir.tensor()"
            raise type_error(name, (), message)
    common = tensors[0].dtype
    for tensor in tensors[1:]:
        common = promote(common, tensor.dtype)
    return [tensor.astype(common) for tensor in tensors]


def _axis(name: str, tensors: Sequence[Tensor], axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise _error(name, tensors, f"axis {axis} is not in {-rank} <= axis < {rank}")
    return axis % rank


def _error(name: str, tensors: Sequence[Tensor], message: str) -> TypeRuleError:
    return type_error(name, [tensor.type for tensor in tensors], message)
